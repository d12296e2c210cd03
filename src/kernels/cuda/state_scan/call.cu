#include "kernels/cuda/state_scan/call.h"

#include "base/error.h"

namespace megatron::kernels::cuda {

void check_scan_blocks(const char* kernel, int64_t blocks) {
  constexpr int64_t kMax = int64_t{1} << 31;
  MG_CHECK(
      blocks < kMax,
      "{} on CUDA: {} blocks of threads exceed the {} of one launch; use a smaller micro-batch "
      "or shorter sequences",
      kernel, blocks, kMax);
}

}  // namespace megatron::kernels::cuda
