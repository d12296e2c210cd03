// Log-probabilities of labels as values with a gradient, for objectives that weigh tokens by what
// the whole forward pass gave. If the weights are known before it, vocabulary_cross_entropy() is
// faster, because it forms both gradients while the logits exist.
#pragma once

#include "autograd/tape.h"
#include "ops/low_rank.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// The tokens of a batch that have a label. Only their rows reach the output layer.
struct LabelledTokens {
  Tensor rows;    // i32 [R]: index of each among the T tokens, distinct; -1: an empty row
  Tensor labels;  // i32 [R]; of an empty row: any token
  // If set, each log-probability is followed by the logarithm of the sum of squared probabilities.
  bool squares = false;
};

// out[t] = log softmax(x w^T)[t, label of t], of logits that are capped if soft_cap is above 0
// (kernels/soft_cap.h); 0 for tokens without a label. f32 (f64) [T], the same on all ranks. x [T,H]
// (with divided tokens [T/n,H]); weight: this rank's rows of the vocabulary, from `first` on. The
// logits are never all stored: backward computes those of each chunk of tokens again. Gradients of
// tokens without a label are not read. With tokens.squares: [T,2], the second of each
// log sum_v softmax(x w^T)[t,v]^2, a constant whose gradient is not read. adapter: added to this
// rank's rows, as in column_linear. bias: of this rank's rows, [rows]; or none.
Var token_log_probabilities(Tape& tape, const Var& x, const Weight& weight, int64_t first,
                            const LabelledTokens& tokens, const TensorParallel& tp,
                            double soft_cap = 0, const ops::LowRank& adapter = {},
                            const Weight& bias = {});

// Entropies of softmax(x w^T) of the labelled tokens, f32 (f64) [R], the same on all ranks; of an
// empty row any number. x [T,H] (with divided tokens [T/n,H]), other arguments as above. Not an op:
// nothing is recorded, the tape only computes.
Tensor token_entropies(Tape& tape, const Tensor& x, const Weight& weight, int64_t first,
                       const LabelledTokens& tokens, const TensorParallel& tp, double soft_cap = 0,
                       const ops::LowRank& adapter = {}, const Weight& bias = {});

}  // namespace megatron::parallel
