#include "kernels/cuda/router_warps.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::kernels::cuda {

int router_warps(const char* kernel, int64_t experts, int64_t shared, int64_t of_warp) {
  constexpr int64_t kShared = 47 << 10, kMaxWarps = 8;
  MG_CHECK(shared + of_warp <= kShared,
           "{}: {} experts need {} bytes of shared memory, but a block has {}; use fewer experts, "
           "or --device cpu",
           kernel, experts, shared + of_warp, kShared);
  return static_cast<int>(std::min(kMaxWarps, (kShared - shared) / std::max<int64_t>(1, of_warp)));
}

}  // namespace megatron::kernels::cuda
