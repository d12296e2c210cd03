// Attention as cuDNN graphs. cuDNN recognizes attention by the order of operations.
#pragma once

#include <memory>

#include "kernels/cuda/attention/cudnn/attention_shape.h"
#include "kernels/cuda/attention/cudnn/graph.h"

namespace megatron::kernels::cuda::cudnn {

// The ids of the graphs' tensors and scalars. lse and delta are f32 [batch, heads, queries].
enum AttentionId : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,   // sums over dout * out, an output
  kDqSums,  // f32 [batch, heads, queries, width], initially zero: dq before rounding
  kScale,   // f32 scalar: factor of the scores
  kHidden,  // f32 scalar: score of a masked key, the lowest value
  kOne,     // f32 scalar 1
};

// q, k, v -> out, lse.
std::unique_ptr<Graph> attention_graph(const AttentionShape& shape);
// q, k, v, out, lse, dout -> dq, dk, dv. dq is summed over keys in a fixed order: cuDNN keeps the
// gradients of all scores in its workspace, 2 bytes each.
std::unique_ptr<Graph> attention_backward_graph(const AttentionShape& shape);
// The same with dq accumulated in kDqSums in the order in which thread blocks arrive.
std::unique_ptr<Graph> attention_backward_graph_in_any_order(const AttentionShape& shape);

}  // namespace megatron::kernels::cuda::cudnn
