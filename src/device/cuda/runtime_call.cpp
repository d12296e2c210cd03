#include "device/cuda/runtime_call.h"

#include "base/error.h"
#include "device/cuda/driver.h"

namespace megatron::cuda {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // told here; the next call is judged by itself
  fail("CUDA: {} failed: {}: {}", what, cudaGetErrorName(result), cudaGetErrorString(result));
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  const auto name_of = driver_function<CUresult(CUresult, const char**)>("cuGetErrorName", 6000);
  const auto text_of = driver_function<CUresult(CUresult, const char**)>("cuGetErrorString", 6000);
  const char *name = nullptr, *text = nullptr;
  name_of(result, &name);
  text_of(result, &text);
  fail("CUDA: {} failed: {}: {}", what, name == nullptr ? "error" : name,
       text == nullptr ? fmt::format("number {}", static_cast<int>(result)) : text);
}

}  // namespace megatron::cuda
