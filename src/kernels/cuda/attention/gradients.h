// Backward pass of attention in two kernels. Both recompute the tiles of scores and add their sums
// in
// the order of indices. With p = e^(scale s - lse), f the dropout factors (0 where dropped) and
// delta = sum of dout * out:
//   dv = sum over queries of f p dout,   ds = p (f dout v^T - delta),
//   dq = scale * sum over keys of ds k,  dk = scale * sum over queries of ds q.
// With a soft cap, s is the capped product, and ds is multiplied by SoftCap::slope. A bias is added
// to scale s; its gradient is ds before that multiplication.
#pragma once

#include "kernels/cuda/attention/call.h"

namespace megatron::kernels::cuda {

// The first writes dq and the sums of the bias's gradient, the second dk and dv. delta: [B,N,T]
// f32. spans, bias_sums: from AttentionBackwardScratch.
void query_gradient(const AttentionBackwardArgs& args, const Tensor& delta, const Tensor& spans,
                    const Tensor& bias_sums, Stream& stream);
void key_gradient(const AttentionBackwardArgs& args, const Tensor& delta, const Tensor& spans,
                  Stream& stream);
// Gradients for calls that run on tensor cores (on_tensor_cores).
void tensor_core_query_gradient(const AttentionBackwardArgs& args, const Tensor& delta,
                                const Tensor& spans, const Tensor& bias_sums, Stream& stream);
void tensor_core_key_gradient(const AttentionBackwardArgs& args, const Tensor& delta,
                              const Tensor& spans, Stream& stream);

// dq, dk or dv in f32 or in the type of q, written or accumulated.
template <class T>
struct GradientTensor {
  HeadTensor<T> narrow;    // used if is_wide is false
  HeadTensor<float> wide;  // used if is_wide is true
  bool is_wide, added;

  GradientTensor(const Tensor& tensor, DType type, double beta)
      : narrow{}, wide{}, is_wide(tensor.dtype() != type), added(beta != 0) {
    if (is_wide) {
      wide = head_tensor<float>(tensor);
    } else {
      narrow = head_tensor<T>(tensor);
    }
  }
  // Calls f(HeadRows) with the rows of a key head.
  template <class F>
  __device__ void rows(int sample, int key_head, int group, F&& f) const {
    if (is_wide) {
      f(HeadRows<float>(wide, sample, key_head, group));
    } else {
      f(HeadRows<T>(narrow, sample, key_head, group));
    }
  }
};

template <class T>
struct GradientCall {
  AttentionCall call;
  HeadTensor<T> q, k, v, dout;
  const float *lse, *delta;
  GradientTensor<T> dq, dk, dv;
  BiasSums bias_sums;  // query_gradient only

  // The bias's sums of this block of query rows; null if they are not requested.
  __device__ float* sums_of(const HeadBlock& block) const {
    if (!bias_sums.requested()) return nullptr;
    const int64_t number = int64_t{call.key_head()} * call.places.row_blocks + block.index;
    return bias_sums.of_block(number, call.places.group);
  }
};
template <class T>
GradientCall<T> gradient_call(const AttentionBackwardArgs& args, const AttentionBlocks& blocks,
                              const Tensor& delta, const Tensor& spans, Stream& stream,
                              const Tensor& bias_sums = {}) {
  return {.call = call_of(args, blocks, spans, stream),
          .q = head_tensor<T>(args.q),
          .k = head_tensor<T>(args.k),
          .v = head_tensor<T>(args.v),
          .dout = head_tensor<T>(args.dout),
          .lse = address_of<float>(args.lse),
          .delta = address_of<float>(delta),
          .dq = GradientTensor<T>(args.dq, args.q.dtype(), args.beta_q),
          .dk = GradientTensor<T>(args.dk, args.q.dtype(), args.beta_kv),
          .dv = GradientTensor<T>(args.dv, args.q.dtype(), args.beta_kv),
          .bias_sums = {address_of<float>(bias_sums),
                        static_cast<int>(args.bias.defined() ? args.bias.size(0) / 2 : 0)}};
}

// lse and delta of a tile's query rows.
template <int kRows>
struct RowStatistics {
  float lse[kRows];  // in units of ln 2; +infinity, which makes p 0, for rows that see nothing
  float delta[kRows];

  // Called by all threads of a block.
  template <class T>
  __device__ void fill(const GradientCall<T>& work, const HeadBlock& block, int first) {
    for (int i = threadIdx.x; i < kRows; i += kTileThreads) {
      lse[i] = INFINITY;
      delta[i] = 0;
      if (first + i >= work.call.places.rows()) continue;
      const int64_t at = statistics_index(work.call, block, first + i);
      const float value = work.lse[at];
      if (value != -INFINITY) lse[i] = value * static_cast<float>(kLog2e);
      delta[i] = work.delta[at];
    }
  }
};

// Stores the block's results before row `end`; each thread has kRows of them.
template <int kWidth, class T, int kRows>
__device__ void store_gradient(const GradientTensor<T>& to, const HeadBlock& block, int group,
                               int end, int width, float factor,
                               const float (&values)[kRows][thread_columns(kWidth)]) {
  to.rows(block.sample, block.key_head, group, [&](const auto& rows) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = block.first_row + tile_row<kRows>(i);
      if (row >= end) continue;
      if (to.added) {
        add_columns<kWidth>(rows.row(row), width, factor, values[i]);
      } else {
        store_columns<kWidth>(rows.row(row), rows.whole, width, factor, values[i]);
      }
    }
  });
}

}  // namespace megatron::kernels::cuda
