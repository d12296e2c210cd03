// Compares two Hugging Face directories, tensor by tensor.
#pragma once

#include <optional>
#include <string>

#include "selftest/report.h"

namespace megatron::selftest {

// Reports the distance of each tensor by tolerance::tensor_metric, the largest difference over all
// elements, and the keys of config.json that differ. Failures are a distance above `tolerance`
// (default: kLayoutFp32 if both are stored in fp32 or fp64, else 0), a tensor that only one
// directory has, and a tensor whose shapes differ. Only reads weights, without running a model.
// Throws Error if a directory cannot be read.
Report compare_directories(const std::string& directory, const std::string& other,
                           std::optional<double> tolerance = {});

}  // namespace megatron::selftest
