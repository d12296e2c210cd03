// Losses of a chunk of tokens from their logits, shared by the functions of the output layer.
#pragma once

#include "autograd/tape.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// C tokens and this rank's V logits of each. All are allocated by the caller.
struct LogitChunk {
  Tensor logits;           // f32 (f64) [C,V], not capped yet; capped in place
  Tensor labels, weights;  // i32 [C]; f32 (f64) [C]
  Tensor exponentials;     // scratch as logits, with dlogits; may be logits unless they are capped
  Tensor loss;             // f32 (f64) [C]
  Tensor hits;             // as loss (kernels/cross_entropy.h), or undefined
  Tensor dlogits;          // of the product that gave the logits; undefined: no gradient
};

// Cross entropy of the labels, 0 where the weight is 0, and the gradient of its sum weighted with
// `weights`. first: index in the vocabulary of this rank's first logit. call: name of the ranks'
// exchange of the largest logit, the sum of exponentials and the label's logit.
void chunk_losses(Tape& tape, const LogitChunk& chunk, int64_t first, double soft_cap,
                  const TensorParallel& tp, std::string_view call);

}  // namespace megatron::parallel
