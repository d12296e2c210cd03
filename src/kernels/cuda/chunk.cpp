#include "kernels/cuda/chunk.h"

#include "base/error.h"

namespace megatron::kernels::cuda {

uint32_t count_items(const char* kernel, int64_t items) {
  constexpr int64_t kMax = int64_t{1} << 31;
  MG_CHECK(items < kMax,
           "{}: {} vectors of 16 bytes exceed the {} of one call; use a smaller micro-batch or a "
           "shorter sequence",
           kernel, items, kMax);
  return static_cast<uint32_t>(items);
}

}  // namespace megatron::kernels::cuda
