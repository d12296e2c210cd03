// For libraries of CUDA that are written for the CPU.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

namespace cuda_shim {

// Queues work of the host's on a stream; `name` is its name in problems.
cudaError_t enqueue(cudaStream_t stream, std::string name, std::function<void()> work);
// True if all of these bytes are live device memory.
bool is_device_memory(const void* p, size_t bytes);
// Adds a line to shim_problems().
void problem(const std::string& text);

}  // namespace cuda_shim
