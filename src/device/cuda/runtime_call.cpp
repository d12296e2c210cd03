#include "device/cuda/runtime_call.h"

#include "base/error.h"
#include "device/cuda/driver.h"
#include "device/cuda/out_of_memory.h"

namespace megatron::cuda {

void fail_for_memory(std::string_view failure) {
  int device = 0;
  size_t free = 0, total = 0;
  std::string left = "the GPU does not report its free memory";
  if (cudaGetDevice(&device) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess)
    left = fmt::format("GPU {} has {} of {} bytes free", device, free, total);
  cudaGetLastError();
  throw OutOfMemory(
      fmt::format("{}; {}, and CUDA and its libraries need some memory in addition to that of the "
                  "run: use a smaller --micro-batch-size or --seq-length, or end other programs on "
                  "that GPU (nvidia-smi lists them)",
                  failure, left));
}

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // clears the error, which is reported here, for the next call
  const std::string text = fmt::format("CUDA: {} failed: {}: {}", what, cudaGetErrorName(result),
                                       cudaGetErrorString(result));
  if (result == cudaErrorMemoryAllocation) fail_for_memory(text);
  fail("{}", text);
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  const auto name_of = driver_function<CUresult(CUresult, const char**)>("cuGetErrorName", 6000);
  const auto text_of = driver_function<CUresult(CUresult, const char**)>("cuGetErrorString", 6000);
  const char *name = nullptr, *words = nullptr;
  name_of(result, &name);
  text_of(result, &words);
  const std::string text =
      fmt::format("CUDA: {} failed: {}: {}", what, name == nullptr ? "error" : name,
                  words == nullptr ? fmt::format("number {}", static_cast<int>(result)) : words);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) fail_for_memory(text);
  fail("{}", text);
}

}  // namespace megatron::cuda
