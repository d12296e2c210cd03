// Token table and output layer with their rows (the vocabulary) divided: rank r of n holds
// share_of(V, n, r). With one rank they are the functions of ops/. adapter: added to this rank's
// rows of the output layer, as in column_linear. bias [rows], or none: of this rank's rows.
#pragma once

#include "autograd/tape.h"
#include "ops/low_rank.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// Rows of the first ranks, share_of(V, n, 0), from those of any rank: its first row and their
// number. A rank without rows begins at V.
int64_t largest_vocabulary_share(int64_t first, int64_t rows, int rank);

// Row ids[t] of the whole table. ids i32 [T], table [rows, H], whose first row is row `first` of V.
// [T, H], the same on all ranks; with divided tokens [T/n, H].
Var vocabulary_embedding(Tape& tape, const Tensor& ids, const Weight& table, int64_t first,
                         const TensorParallel& tp, const ops::ReplacedRows& replaced = {});

// Loss of each token and all gradients except that of x, as ops::linear_cross_entropy: [T], the
// same on all ranks. x [T, H] (divided tokens: [T/n, H]); labels, weights [T]. For each chunk of
// tokens the ranks exchange the largest logit, the sum of exponentials and the label's logit.
Tensor vocabulary_cross_entropy(Tape& tape, const Var& x, const Weight& weight, int64_t first,
                                const Tensor& labels, const Tensor& weights,
                                const TensorParallel& tp, double soft_cap = 0,
                                const ops::LowRank& adapter = {}, const Weight& bias = {},
                                const Tensor& hits = {});

// x w^T over the whole vocabulary V, capped, on all ranks: [T, V], recorded as ops::linear if the
// tape records.
Var vocabulary_linear(Tape& tape, const Var& x, const Weight& weight, int64_t vocabulary,
                      const TensorParallel& tp, double soft_cap = 0,
                      const ops::LowRank& adapter = {}, const Weight& bias = {});
// The logits that the loss is computed from, f32 (f64), as in ops::linear_logits: on all ranks.
Tensor vocabulary_logits(Tape& tape, const Tensor& x, const Weight& weight, int64_t vocabulary,
                         const TensorParallel& tp, double soft_cap = 0,
                         const ops::LowRank& adapter = {}, const Weight& bias = {});

}  // namespace megatron::parallel
