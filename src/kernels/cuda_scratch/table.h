// Scratch memory of the CUDA kernels, for plans of runs that compute on CUDA. The code in this
// folder is part of both the program and the CUDA plugin: the kernels request memory by the same
// functions.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

// As cpu_scratch_table (kernels/cpu/table.h).
const Table& cuda_scratch_table();

}  // namespace megatron::kernels
