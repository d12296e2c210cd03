// Interface for stand-ins of CUDA libraries on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

namespace cuda_shim {

// Queues host work on a stream; `name` identifies it in problems.
cudaError_t enqueue(cudaStream_t stream, std::string name, std::function<void()> work);
// True if all of these bytes are live device memory.
bool is_device_memory(const void* p, size_t bytes);
// Adds a line to shim_problems().
void problem(const std::string& text);

}  // namespace cuda_shim
