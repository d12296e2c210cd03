// Softmax cross entropy over rows of logits, with its gradient in the same pass.
#pragma once

#include "tensor/tensor.h"

namespace megatron::kernels {

// loss[t] = log sum_v exp(logits[t,v]) - logits[t,labels[t]], f32 (f64 for f64) [T]; 0 where
// weights[t] is 0. dlogits[t,v] = weights[t] * (softmax(logits[t])[v] - [v == labels[t]]) when
// dlogits is defined; it may be logits. logits [T,V] contiguous (f64, f32, bf16, f16), dlogits any
// of f32/bf16/f16 (f64 for f64); labels i32 [T]; weights [T] as loss. Where weights[t] is 0 the
// label is not read (it may be -100) and dlogits is 0.
struct CrossEntropyArgs {
  Tensor logits, labels, weights;
  Tensor loss, dlogits;
};

}  // namespace megatron::kernels
