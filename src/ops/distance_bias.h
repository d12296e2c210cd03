// Biases of attention scores by the distance of a key, from a table of buckets of distances.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// out [D,N], f32 (f64): row d is row buckets[d] of table [B,N], in the model's type; buckets i32
// [D]. The gradient of out is added up by bucket.
Var distance_bias(Tape& tape, const Tensor& buckets, const Weight& table);

}  // namespace megatron::ops
