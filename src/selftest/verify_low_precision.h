// Compares the 4- and 8-bit formats and their quantization with vectors of their definitions.
#pragma once

#include <string>
#include <vector>

#include "selftest/verify.h"

namespace megatron::selftest {

// directory: .npy files as in tests/golden/vectors/lowprec/README.md; any of them may be left out.
bool has_low_precision(const std::string& directory);
// Every code, scale and value must have the same bits. Files that were not compared are failures,
// missing ones are named. Returns one report per device. Throws Error if a file is malformed.
std::vector<Report> verify_low_precision(const std::string& directory,
                                         const VerifyOptions& options);

}  // namespace megatron::selftest
