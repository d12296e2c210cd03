// Address space of the shim's devices.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>

namespace cuda_shim {

uintptr_t address(const void* p);
void* pointer(uintptr_t at);
size_t free_memory(int device);
// Reserves pages that fault. Returns 0 if none are left.
uintptr_t reserve_addresses(size_t bytes, size_t alignment);
void open_pages(uintptr_t at, size_t bytes);  // fills them with NaNs
void close_pages(uintptr_t at, size_t bytes);
std::string explain_address(const void* p);
cudaError_t queue_copy(cudaStream_t stream, const char* name, std::function<cudaError_t()> work);

}  // namespace cuda_shim
