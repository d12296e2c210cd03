// Forward pass of attention. Each block of threads processes a block of queries over keys in order,
// with the online softmax (Milakov and Gimelshein 2018) in tiles (Dao et al. 2022), in f32 for
// every type.
#pragma once

#include "kernels/cuda/attention/call.h"

namespace megatron::kernels::cuda {

template <class T>
struct ForwardCall {
  AttentionCall call;
  HeadTensor<T> q, k, v, out;
  float* lse;
  const float* sinks;  // may be null
  PageTable pages;
};
inline PageTable page_table(const AttentionArgs& args) {
  if (!args.block_table.defined()) return {};
  return {.table = address_of<int32_t>(args.block_table),
          .blocks = static_cast<int>(args.block_table.size(1)),
          .keys = static_cast<int>(args.k.size(1))};
}
template <class T>
ForwardCall<T> forward_call(const AttentionArgs& args, const AttentionBlocks& blocks,
                            const Tensor& spans, Stream& stream) {
  return {.call = call_of(args, blocks, spans, stream),
          .q = head_tensor<T>(args.q),
          .k = head_tensor<T>(args.k),
          .v = head_tensor<T>(args.v),
          .out = head_tensor<T>(args.out),
          .lse = static_cast<float*>(args.lse.address()),
          .sinks = address_of<float>(args.sinks),
          .pages = page_table(args)};
}

// log of the sum of e^x, from the largest x in units of ln 2 and the sum of 2^(x - largest).
__device__ inline float log_sum_exp(float maximum, float sum) {
  constexpr float kLn2 = 0.693147180559945309f;
  return sum == 0 ? -INFINITY : fmaf(maximum, kLn2, logf(sum));
}

// Factor of a row's weighted sum, including `kept`, and the row's log-sum-exp.
struct RowTotal {
  __device__ RowTotal(float maximum, float sum, const float* sinks, int head, float kept) {
    if (sinks == nullptr) {
      factor = sum == 0 ? 0.0f : kept / sum;
      lse = log_sum_exp(maximum, sum);
    } else if (sum == 0) {
      factor = 0;
      lse = sinks[head];
    } else {
      const float sink = sinks[head] * static_cast<float>(kLog2e), top = fmaxf(maximum, sink);
      const float fade = exp2f(maximum - top), all = fmaf(sum, fade, exp2f(sink - top));
      factor = kept * fade / all;
      lse = log_sum_exp(top, all);
    }
  }
  float factor, lse;
};

// Forward pass for calls that run on tensor cores (on_tensor_cores).
void tensor_core_attention(const AttentionArgs& args, const Tensor& spans, Stream& stream);

}  // namespace megatron::kernels::cuda
