#include <cmath>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/sink_gradients.h"

namespace megatron::kernels::cuda {
namespace {

struct Sinks {
  const float *sinks, *lse, *delta;
  float* out;
  int64_t samples, heads, queries;
  bool added;
};

// One block per head.
__global__ void __launch_bounds__(kThreads) sum_sink_gradients(Sinks work) {
  __shared__ float partial[kWarp];
  const int64_t head = blockIdx.x;
  const float sink = work.sinks[head];
  float sum = 0;
  const int64_t rows = sink == -INFINITY ? 0 : work.samples * work.queries;
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
    const int64_t sample = i / work.queries;
    const int64_t at = (sample * work.heads + head) * work.queries + i - sample * work.queries;
    sum = fmaf(expf(sink - work.lse[at]), work.delta[at], sum);
  }
  sum = block_sum(sum, partial);
  if (threadIdx.x == 0) work.out[head] = (work.added ? work.out[head] : 0.0f) - sum;
}

}  // namespace

void sink_gradients(const Tensor& sinks, const Tensor& lse, const Tensor& delta,
                    const Accumulate& to, Stream& stream) {
  if (!to.out.defined() || to.out.elements() == 0) return;
  const Sinks work{.sinks = address_of<float>(sinks),
                   .lse = address_of<float>(lse),
                   .delta = address_of<float>(delta),
                   .out = address_of<float>(to.out),
                   .samples = lse.size(0),
                   .heads = lse.size(1),
                   .queries = lse.size(2),
                   .added = to.beta != 0};
  launch("sink gradients", sum_sink_gradients,
         Grid{.blocks = dim3(static_cast<unsigned>(work.heads))}, stream, work);
}

}  // namespace megatron::kernels::cuda
