#include "kernels/cuda/attention/gradients.h"
#include "kernels/cuda/attention/library_attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sink_gradients.h"
#include "kernels/cuda_scratch/library_attention.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

template <class T>
struct DeltaCall {
  HeadTensor<T> out, dout;
  int64_t rows;  // over all samples, queries and heads
  int queries, heads, width;
  float* delta;
};

// One warp per row, four adjacent elements per lane at a time. The order of sums does not depend on
// a tensor's address.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_rows(DeltaCall<T> work) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= work.rows) return;
  const int head = static_cast<int>(row % work.heads);
  const int64_t of_head = row / work.heads;
  const int query = static_cast<int>(of_head % work.queries);
  const int sample = static_cast<int>(of_head / work.queries);
  const T* a = HeadRows<T>(work.out, sample, head, 1).row(query);
  const T* b = HeadRows<T>(work.dout, sample, head, 1).row(query);
  const bool whole = work.out.whole && work.dout.whole;
  float sum = 0;
#pragma unroll 2
  for (int d = 4 * lane; d < work.width; d += 4 * kWarp) {
    Vector<float, 4> x{}, y{};
    if (whole) {
      const Vector<T, 4> out = load_vector<T, 4>(a + d), dout = load_vector<T, 4>(b + d);
      for (int n = 0; n < 4; ++n) x.at[n] = to_float(out.at[n]);
      for (int n = 0; n < 4; ++n) y.at[n] = to_float(dout.at[n]);
    } else {
      for (int n = 0; n < 4; ++n) {
        if (d + n >= work.width) continue;
        x.at[n] = to_float(a[d + n]);
        y.at[n] = to_float(b[d + n]);
      }
    }
    for (int n = 0; n < 4; ++n) sum = fmaf(x.at[n], y.at[n], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) work.delta[(int64_t{sample} * work.heads + head) * work.queries + query] = sum;
}

void row_deltas(const AttentionBackwardArgs& args, const Tensor& delta, Stream& stream) {
  const int64_t rows = delta.elements();
  if (rows == 0) return;
  for_storage_type("attention_backward", args.q.dtype(), [&](auto type) {
    using T = decltype(type);
    const DeltaCall<T> work{.out = head_tensor<T>(args.out),
                            .dout = head_tensor<T>(args.dout),
                            .rows = rows,
                            .queries = static_cast<int>(args.q.size(1)),
                            .heads = static_cast<int>(args.q.size(2)),
                            .width = static_cast<int>(args.v.size(3)),
                            .delta = address_of<float>(delta)};
    launch("attention_backward, delta", sum_rows<T>, grid_for(rows * kWarp), stream, work);
  });
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  ask_library_scratch(args, stream);
  const bool done = library_attention_backward(args, stream);
  ++(done ? stream.calls().attention_library : stream.calls().attention_own);
  check_attention_sizes("attention_backward", args);
  const AttentionBackwardScratch scratch = attention_backward_scratch(args, stream);
  if (done) return;
  row_deltas(args, scratch.delta, stream);
  sink_gradients(args.sinks, args.lse, scratch.delta, args.dsinks, stream);
  key_gradient(args, scratch.delta, scratch.key_spans, stream);
  query_gradient(args, scratch.delta, scratch.query_spans, scratch.bias_sums, stream);
  store_bias_gradient(args, scratch.bias_sums, stream);
}

}  // namespace megatron::kernels::cuda
