// The measurements of `megatron bench`, one file each (bench_<name>.cpp).
#pragma once

#include "cli/options.h"

namespace megatron::cli {

int bench_step(const Arguments& arguments);
int bench_tokenize(const Arguments& arguments);
int bench_preprocess(const Arguments& arguments);
int bench_index(const Arguments& arguments);
int bench_kernels(const Arguments& arguments);
int bench_generate(const Arguments& arguments);
int bench_parallel(const Arguments& arguments);

}  // namespace megatron::cli
