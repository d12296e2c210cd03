// Calls of CUDA's runtime and driver that must succeed.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

namespace megatron::cuda {

// Throw Error: "CUDA: <what> failed: <CUDA's name and text of the error>"; what names the call or
// the work, and what to do where something can be done. OutOfMemory
// (device/cuda/out_of_memory.h) where memory is what it lacks.
void check(cudaError_t result, const char* what);
void check(CUresult result, const char* what);

}  // namespace megatron::cuda
