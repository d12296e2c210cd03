// The measurements of `megatron bench`.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/fields.h"

namespace megatron::bench {

// Sets a measurement's fields from the command line. Returns an exit code if help was printed, in
// which case nothing is measured.
using ReadFlags = std::function<std::optional<int>(const std::string& usage,
                                                   const std::string& description, Fields& fields)>;

// Each prints its measurements and returns the exit code; throws Error for invalid flags.
int measure_gemm(const ReadFlags& read);
int measure_tokenize(const ReadFlags& read);
int measure_preprocess(const ReadFlags& read);
int measure_index(const ReadFlags& read);
int measure_kernels(const ReadFlags& read);
int measure_generate(const ReadFlags& read);
int measure_serve(const ReadFlags& read);
int measure_parallel(const ReadFlags& read);

}  // namespace megatron::bench
