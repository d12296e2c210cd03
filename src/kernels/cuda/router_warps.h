// How many warps share a block where each takes shared memory for its token's experts.
#pragma once

#include <cstdint>

namespace megatron::kernels::cuda {

// Of a block that has `shared` bytes for itself and so many for each warp: up to eight. Throws Error naming the kernel
// and the number of experts where not even one fits.
int router_warps(const char* kernel, int64_t experts, int64_t shared, int64_t of_warp);

}  // namespace megatron::kernels::cuda
