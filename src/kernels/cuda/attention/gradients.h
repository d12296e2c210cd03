// The backward of attention: two kernels that make the tiles of scores again, each with its sums in
// the order of indices. With p = e^(scale s - lse), f the dropout factors (0 where dropped) and
// delta = sum of dout * out:
//   dv = sum over queries of f p dout,   ds = p (f dout v^T - delta),
//   dq = scale * sum over keys of ds k,  dk = scale * sum over queries of ds q.
#pragma once

#include "kernels/cuda/attention/call.h"

namespace megatron::kernels::cuda {

// Writes dq; and dk and dv. delta: [B,N,T] f32; spans: of AttentionBackwardScratch.
void query_gradient(const AttentionBackwardArgs& args, const Tensor& delta, const Tensor& spans,
                    Stream& stream);
void key_gradient(const AttentionBackwardArgs& args, const Tensor& delta, const Tensor& spans,
                  Stream& stream);
// Of calls that are computed on tensor cores (on_tensor_cores).
void tensor_core_query_gradient(const AttentionBackwardArgs& args, const Tensor& delta,
                                const Tensor& spans, Stream& stream);
void tensor_core_key_gradient(const AttentionBackwardArgs& args, const Tensor& delta,
                              const Tensor& spans, Stream& stream);

template <class T>
struct GradientCall {
  AttentionCall call;
  HeadTensor<T> q, k, v, dout;
  const float *lse, *delta;
  HeadTensor<T> dq, dk, dv;
};
template <class T>
GradientCall<T> gradient_call(const AttentionBackwardArgs& args, const AttentionBlocks& blocks,
                              const Tensor& delta, const Tensor& spans, Stream& stream) {
  return {.call = call_of(args, blocks, spans, stream),
          .q = head_tensor<T>(args.q),
          .k = head_tensor<T>(args.k),
          .v = head_tensor<T>(args.v),
          .dout = head_tensor<T>(args.dout),
          .lse = address_of<float>(args.lse),
          .delta = address_of<float>(delta),
          .dq = head_tensor<T>(args.dq),
          .dk = head_tensor<T>(args.dk),
          .dv = head_tensor<T>(args.dv)};
}

// Of a tile's query rows.
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

}  // namespace megatron::kernels::cuda
