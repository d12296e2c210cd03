// The scratch memory of the CUDA kernels, for plans of runs that compute on CUDA. What is below
// here is part of the program and of the CUDA plugin: the kernels ask by the same functions.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// As cpu_scratch_table (kernels/cpu/table.h).
const Table& cuda_scratch_table();

}  // namespace megatron::kernels
