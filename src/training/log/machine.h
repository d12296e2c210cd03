// What is known of the machine and of this process. What the system does not tell is empty or 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::training {

std::string host_name();
std::string cpu_name();                   // "AMD EPYC 9654 96-Core Processor"
int64_t core_count();                     // that this process may use
std::vector<std::string> command_line();  // program and arguments
int64_t resident_bytes();                 // of this process, now
double seconds_since_1970();              // UTC

// The value of the first line "name : value" of a text as /proc/cpuinfo; empty: there is none.
std::string cpuinfo_value(const std::string& text, const std::string& name);

}  // namespace megatron::training
