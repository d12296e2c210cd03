#include "kernels/cuda/launch.h"

#include "base/error.h"

namespace megatron::kernels::cuda {

void check_blocks(const char* name, int64_t blocks) {
  constexpr int64_t kMax = int64_t{1} << 31;
  MG_CHECK(
      blocks < kMax,
      "{} on CUDA: {} blocks of threads exceed the {} of one launch; use a smaller micro-batch "
      "or shorter sequences",
      name, blocks, kMax);
}

void check_shared_memory(std::string_view work, size_t bytes, std::string_view instead) {
  int device = 0, most = 0;
  megatron::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  megatron::cuda::check(
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
      "cudaDeviceGetAttribute");
  MG_CHECK(bytes <= static_cast<size_t>(most),
           "{} needs {} bytes of shared memory, but GPU {} allows {} per block (as GPUs of compute "
           "capability 8.6, 8.9 and 12.0 do); use {}",
           work, bytes, device, most, instead);
}

}  // namespace megatron::kernels::cuda
