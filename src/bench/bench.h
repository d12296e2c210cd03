// The measurements of `megatron bench`.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/fields.h"

namespace megatron::bench {

// Gives a measurement's fields the values of the command line. A value: nothing is to be measured,
// the help was printed; it is the exit code.
using ReadFlags = std::function<std::optional<int>(const std::string& usage,
                                                   const std::string& description, Fields& fields)>;

// Each prints what it measured and returns the exit code; it throws Error for flags that do not fit.
int measure_gemm(const ReadFlags& read);
int measure_tokenize(const ReadFlags& read);
int measure_preprocess(const ReadFlags& read);
int measure_index(const ReadFlags& read);
int measure_kernels(const ReadFlags& read);
int measure_generate(const ReadFlags& read);
int measure_serve(const ReadFlags& read);
int measure_parallel(const ReadFlags& read);

}  // namespace megatron::bench
