// Attention as cuDNN's graphs. Of the operations that it computes, cuDNN knows attention by their
// order.
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
  kDelta,   // sums over dout * out, written
  kDqSums,  // f32 [batch, heads, queries, width], zero before: dq before it is rounded
  kScale,   // f32 scalars: of the scores,
  kHidden,  // the score of a key that a query does not see: none is less,
  kOne,     // and 1
};

// q, k, v -> out, lse.
std::unique_ptr<Graph> attention_graph(const AttentionShape& shape);
// q, k, v, out, lse, dout -> dq, dk, dv. dq is the sum over keys in one order: cuDNN keeps the
// gradients of all scores in its workspace, 2 bytes each.
std::unique_ptr<Graph> attention_backward_graph(const AttentionShape& shape);
// The same with dq summed in kDqSums as blocks of threads come.
std::unique_ptr<Graph> attention_backward_graph_in_any_order(const AttentionShape& shape);

}  // namespace megatron::kernels::cuda::cudnn
