// Properties of the machine and of this process. Values that the system does not report are empty
// or 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/processor.h"

namespace megatron::report {

std::string host_name();
int64_t core_count();                     // cores that this process may use
std::vector<std::string> command_line();  // program and arguments
int64_t resident_bytes();                 // of this process
double seconds_since_1970();              // UTC

}  // namespace megatron::report
