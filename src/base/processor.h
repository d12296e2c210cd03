// Description of the processors by the system. Unknown values are empty.
#pragma once

#include <string>

namespace megatron {

std::string cpu_name();      // "AMD EPYC 9654 96-Core Processor"
std::string cpu_features();  // "fpu vme de ... avx512f ...": of the first processor
// Processors that this process may run on, as "0-3,8".
std::string allowed_processors();

// Value of the first line "name : value" in a text like /proc/cpuinfo; empty if there is none.
std::string cpuinfo_value(const std::string& text, const std::string& name);

}  // namespace megatron
