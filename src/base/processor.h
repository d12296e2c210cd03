// What the system says of the processors. What it does not say is empty.
#pragma once

#include <string>

namespace megatron {

std::string cpu_name();      // "AMD EPYC 9654 96-Core Processor"
std::string cpu_features();  // "fpu vme de ... avx512f ...": of the first one
// Those that this process may run on, as "0-3,8".
std::string allowed_processors();

// The value of the first line "name : value" of a text as /proc/cpuinfo; empty: there is none.
std::string cpuinfo_value(const std::string& text, const std::string& name);

}  // namespace megatron
