#include "kernels/cuda/launch.h"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {
namespace {

// A warp reads all of its partial rows of a norm (kernels/cuda_scratch/scratch.h) at once.
constexpr int kWarps = 32, kUnroll = 9;

// Warp w of a block adds rows w, w + kWarps, ... of 32 columns; the warps' sums are added in order.
__global__ void __launch_bounds__(kWarp* kWarps)
    add_rows(const float* partials, float* out, int64_t rows, int64_t width, bool accumulate) {
  __shared__ float sums[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  for (int64_t first = warp; column < width && first < rows; first += kUnroll * kWarps) {
    float values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * kWarps;
      values[u] = row < rows ? partials[row * width + column] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += values[u];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= width) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  out[column] = accumulate ? sum + out[column] : sum;
}

}  // namespace

void add_partial_rows(const Tensor& partials, const Accumulate& to, Stream& stream) {
  const int64_t width = partials.size(1);
  if (width == 0) return;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div(width, kWarp))),
                  .threads = dim3(kWarp * kWarps)};
  launch("sum of partial rows", add_rows, grid, stream,
         static_cast<const float*>(partials.address()), static_cast<float*>(to.out.address()),
         partials.size(0), width, to.beta != 0);
}

}  // namespace megatron::kernels::cuda
