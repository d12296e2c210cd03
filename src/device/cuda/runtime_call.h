// Calls of CUDA's runtime and driver, checked for success.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

namespace megatron::cuda {

// Throws Error: "CUDA: <what> failed: <CUDA's name and text of the error>". `what` names the call
// or the work, and what to change if known. Throws OutOfMemory (device/cuda/out_of_memory.h) if
// memory is lacking.
void check(cudaError_t result, const char* what);
void check(CUresult result, const char* what);

}  // namespace megatron::cuda
