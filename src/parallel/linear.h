// Matrix products with the matrix divided among the n ranks of a TensorParallel. With one rank they
// are ops::linear.
#pragma once

#include "autograd/tape.h"
#include "ops/linear.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// Outputs divided: y [T, out/n] = x w^T + b. x [T, in], the same on all ranks; with divided tokens
// [T/n, in], gathered first (the gathered x is not kept but gathered again in backward, overlapped
// with the product that computes dx). weight [out/n, in], bias [out/n] or none. Backward: dx is
// summed over the ranks (divided tokens: reduce-scattered), overlapped with the product that
// computes the weight's gradient. adapter: added to this rank's weight; a is the same on all ranks,
// and each rank's gradient of it is a partial sum; b has the rows of this rank's outputs.
Var column_linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                  const TensorParallel& tp, const ops::LowRank& adapter = {});

// The same for ops::linear_gelu.
ops::Gelu column_linear_gelu(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                             const TensorParallel& tp, bool keeps_v);

// Inputs divided: y = sum over ranks of x w^T, + b. x [T, in/n], weight [out, in/n], bias [out],
// the same on all ranks, or none. y [T, out], the same on all ranks; with divided tokens [T/n,
// out], and the gradient of the bias is then a partial sum. adapter: added to this rank's weight; a
// has the columns of this rank's inputs, b is the same on all ranks, and each rank's gradient of it
// is a partial sum. Nothing of it is sent: its products are summed with those of the weight.
Var row_linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
               const TensorParallel& tp, const ops::LowRank& adapter = {});

// The same for g.y; g.x receives the gradient, as in ops::linear.
Var row_linear(Tape& tape, const ops::Gelu& g, const Weight& weight, const Weight& bias,
               const TensorParallel& tp);

// The second half of row_linear: adds up `partial`, each rank's x w^T, over the ranks, + bias. Only
// for several ranks.
Var row_sum(Tape& tape, const Var& partial, const Weight& bias, const TensorParallel& tp);

// Gathers key and value heads if there are more ranks than key heads. qkv [T, q + 2 k/n] holds the
// queries of this rank's heads and an equal share [k/n] of the k key columns (heads times head
// size, of all ranks together) and of the value columns. Returns [T, q + 2 head_size]: the whole
// key and value head that this rank's queries use, head rank * heads / n. Backward: sums over the
// ranks that share a head.
Var gather_key_head(Tape& tape, const Var& qkv, int64_t q, int64_t k, int64_t head_size,
                    const TensorParallel& tp);

}  // namespace megatron::parallel
