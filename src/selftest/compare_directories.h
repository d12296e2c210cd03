// Two Hugging Face directories, tensor by tensor.
#pragma once

#include <optional>
#include <string>

#include "selftest/report.h"

namespace megatron::selftest {

// The distance of each tensor of either by tolerance::tensor_metric, and the largest difference of all elements. A
// failure is a distance above `tolerance` (default: kLayoutFp32 where both are stored in fp32 or fp64, else 0), a
// tensor that only one of them has, and one of another shape. config.json: keys that differ. Reads weights, computes
// nothing. Throws Error when a directory cannot be read.
Report compare_directories(const std::string& directory, const std::string& other,
                           std::optional<double> tolerance = {});

}  // namespace megatron::selftest
