// Number of warps per block if each takes shared memory for its token's experts.
#pragma once

#include <cstdint>

namespace megatron::kernels::cuda {

// Warps of a block that needs `shared` bytes plus `of_warp` bytes per warp: at most eight. Throws
// Error naming the kernel and the number of experts if not even one warp fits.
int router_warps(const char* kernel, int64_t experts, int64_t shared, int64_t of_warp);

}  // namespace megatron::kernels::cuda
