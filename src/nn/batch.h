// The part of a micro-batch through which no gradient flows.
#pragma once

#include "tensor/tensor.h"

namespace megatron::nn {

// B sequences of S tokens, flattened to T = B * S.
struct Batch {
  int64_t sequences = 0, length = 0;
  Tensor tokens;     // i32 [T]
  Tensor positions;  // i32 [T]: of the position table or the rotary angles
  Tensor labels;     // i32 [T]; not read where the weight is 0
  Tensor weights;    // f32 (f64) [T]: of each token's loss in the objective
  Tensor samples;    // i64 [B]: number of each sequence in the run, for dropout
  // i32 [T]: index within its sequence of the first token that each token's attention sees;
  // undefined: 0. Attention goes by indices, whatever `positions` says.
  Tensor segment_begins;
};

}  // namespace megatron::nn
