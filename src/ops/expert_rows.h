// Moves tokens to their experts and back (kernels/expert_rows.h, kernels/grouped_gemm.h).
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// Mapping between tokens and the experts' rows, as in kernels::ExpertRowsArgs.
struct ExpertOrder {
  Tensor offsets;  // i32 [G+1]
  Tensor slots;    // i32 [R]
  Tensor rows;     // i32 [T,k]

  int64_t choices() const { return rows.size(1); }
  int64_t row_count() const { return slots.size(0); }
};

// Returns the rows of x [T,H] in expert order: [R,H], zeros in rows without a slot.
Var to_experts(Tape& tape, const Var& x, const ExpertOrder& order);
// Returns the sum of each token's rows of y [R,H], in the order of its choices: [T,H]. It is the
// adjoint of to_experts().
Var from_experts(Tape& tape, const Var& y, const ExpertOrder& order);
// Returns the weights [T,k] f32 (f64) of the rows' slots: [R], zero for rows without a slot.
Var weights_of_rows(Tape& tape, const Var& weights, const ExpertOrder& order);

// factors[r] * x[r,:]; x [R,H], factors f32 (f64) [R]. Saves both.
Var scale_rows(Tape& tape, const Var& x, const Var& factors);

// y[r,:] = x[r,:] w[g]^T + b[g] for the group g that row r belongs to; w [G,out,in], b [G,out] or
// none, x [R,in], offsets i32 [G+1]; rows after the last group are zero. Weight gradients are
// written to their slots, zeros for a group without rows, and can run separately from the input's
// gradient.
// adds_bias false: y is without b, although its gradient is still computed; another of the ranks
// whose y are summed adds b.
Var grouped_linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                   const Tensor& offsets, bool adds_bias = true);

}  // namespace megatron::ops
