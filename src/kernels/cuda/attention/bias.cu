#include "kernels/cuda/attention/bias.h"
#include "kernels/cuda/chunk.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"

namespace megatron::kernels::cuda {
namespace {

struct BiasTotal {
  BiasSums sums;
  float* out;  // [2R+1,N]
  int64_t samples;
  int heads, kv_heads, row_blocks;
  bool added;
};

// One block per distance and head.
__global__ void __launch_bounds__(kThreads) sum_bias_gradient(BiasTotal work) {
  __shared__ float partial[kWarp];
  const int row = static_cast<int>(blockIdx.x) / work.heads;
  const int n = static_cast<int>(blockIdx.x) % work.heads;
  const int group = work.heads / work.kv_heads, last = 2 * work.sums.radius;
  const int begin = row == 0 ? 0 : kTileThreads + row;
  const int end = row == last ? work.sums.slots() : kTileThreads + row + 1;
  const int64_t parts = work.samples * work.row_blocks, count = parts * (end - begin);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const int64_t part = i / (end - begin), sample = part / work.row_blocks;
    const int64_t block =
        (sample * work.kv_heads + n / group) * work.row_blocks + part - sample * work.row_blocks;
    const float* of_head =
        work.sums.of_block(block, group) + int64_t{n % group} * work.sums.slots();
    sum += of_head[begin + i - part * (end - begin)];
  }
  sum = block_sum(sum, partial);
  if (threadIdx.x == 0) work.out[blockIdx.x] = (work.added ? work.out[blockIdx.x] : 0.0f) + sum;
}

}  // namespace

DistanceBias DistanceBias::of(const Tensor& bias) {
  if (!bias.defined()) return {};
  return {.values = address_of<float>(bias),
          .radius = static_cast<int>(bias.size(0) / 2),
          .distance_stride = static_cast<int>(bias.stride(0)),
          .head_stride = static_cast<int>(bias.stride(1))};
}

void store_bias_gradient(const AttentionBackwardArgs& args, const Tensor& sums, Stream& stream) {
  const Accumulate& to = args.dbias;
  if (!to.out.defined() || to.out.elements() == 0) return;
  const BiasTotal work{.sums = {address_of<float>(sums), static_cast<int>(to.out.size(0) / 2)},
                       .out = address_of<float>(to.out),
                       .samples = args.q.size(0),
                       .heads = static_cast<int>(args.q.size(2)),
                       .kv_heads = static_cast<int>(args.k.size(2)),
                       .row_blocks = static_cast<int>(query_gradient_blocks(args).row_blocks),
                       .added = to.beta != 0};
  launch("attention_backward, dbias", sum_bias_gradient,
         Grid{.blocks = dim3(static_cast<unsigned>(to.out.elements()))}, stream, work);
}

}  // namespace megatron::kernels::cuda
