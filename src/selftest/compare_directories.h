// Two Hugging Face directories, tensor by tensor.
#pragma once

#include <string>

#include "selftest/report.h"

namespace megatron::selftest {

// Each tensor of either: equal (whatever type it is stored in), or the largest difference, which is a failure
// above 0, as are one that only one of them has and one of another shape. config.json: keys that differ. Reads
// weights, computes nothing. Throws Error when a directory cannot be read.
Report compare_directories(const std::string& directory, const std::string& other);

}  // namespace megatron::selftest
