// Permutes tokens to the order of their experts: every choice of a token is a row, and the rows of
// an expert are adjacent (Gale et al. 2023).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// Rows of an expert that are kept if they exceed its capacity.
enum class KeptRows { first, largest };

// `factor` times an even load of E experts for `tokens` tokens of k choices, rounded up: the rows
// that an expert has room for. At least 1, and at most one for each token, since none chooses an
// expert twice.
constexpr int64_t capacity_rows(int64_t tokens, int64_t choices, int64_t experts, double factor) {
  const double rows = static_cast<double>(tokens * choices) / static_cast<double>(experts) * factor;
  const int64_t most = tokens > 1 ? tokens : 1;
  if (rows >= static_cast<double>(most)) return most;
  const auto whole = static_cast<int64_t>(rows);
  return whole < 1 || static_cast<double>(whole) < rows ? whole + 1 : whole;
}

// Slot t * k + j is the j-th choice of token t, experts[t,j] in [first, first + G); other choices
// (-1, experts of other ranks) have no row. Rows are in ascending order of experts, then of slots.
// The rows of expert first + g are [offsets[g], offsets[g+1]). slots[r] is the slot of row r, or -1
// for an empty row; rows[t,j] is the row of a slot, or -1 if it has none. R is at least the number
// of rows; those from offsets[G] on are empty.
//   capacity 0: every slot has a row.
//   capacity > 0: at most `capacity` rows per expert and segment; a segment is `segment`
//     consecutive tokens (0: all tokens are one). Keeps the first ones, or those of largest weight
//     (the first among equal ones), in ascending order of slots. padded: each expert has capacity x
//     segments rows; empty rows come last.
//   factor > 0: tokens without a first choice (-1) are padding, and a segment with n others has
//     capacity_rows(n, k, all_experts, factor) in place of `capacity`, which is at least that.
// Slots beyond R rows are dropped. experts i32 [T,k] contiguous, weights f32 (f64) [T,k]
// or undefined (KeptRows::largest reads them), offsets i32 [G+1], slots i32 [R], rows i32 [T,k].
struct ExpertRowsArgs {
  Tensor experts, weights;
  int64_t first = 0;
  int64_t capacity = 0, segment = 0;
  KeptRows kept = KeptRows::first;
  bool padded = false;
  double factor = 0;
  int64_t all_experts = 0;  // of all ranks; with a factor
  Tensor offsets, slots, rows;
};

// out[r,:] = x[index[r] / share, :], zeros if index[r] < 0. x [N,H], out [R,H] of one floating
// type, contiguous; index i32 [R], below N * share.
struct TakeRowsArgs {
  Tensor x, index;
  int64_t share = 1;
  Tensor out;
};

// out[t,:] = sum over j of x[index[t,j], :], without negative indices, added in order of j in f32
// (f64) and rounded once. x [R,H], out [T,H] of one floating type, contiguous; index i32 [T,k].
// Without an index, out[t,:] = sum over j of x[t,j,:], x [T,k,H] with its last dim contiguous and
// other strides free.
struct SumRowsArgs {
  Tensor x, index;
  Tensor out;
};

// out[r,:] = factors[r] * x[r,:], in f32 (f64), rounded once. x, out [R,H] of one floating type,
// contiguous; factors f32 (f64) [R]. out may be x.
struct ScaleRowsArgs {
  Tensor x, factors;
  Tensor out;
};

// dx[r,:] = factors[r] * dout[r,:], dfactors[r] = sum over h of dout[r,h] * x[r,h] in f32 (f64), in
// an order fixed by H. dx may be dout.
struct ScaleRowsBackwardArgs {
  Tensor x, factors, dout;
  Tensor dx, dfactors;
};

void check(const ExpertRowsArgs& args);
void check(const TakeRowsArgs& args);
void check(const SumRowsArgs& args);
void check(const ScaleRowsArgs& args);
void check(const ScaleRowsBackwardArgs& args);

template <class F>
void visit(ExpertRowsArgs& a, F&& f) {
  f("experts", Access::read, a.experts);
  f("weights", Access::read, a.weights);
  f("offsets", Access::write, a.offsets);
  f("slots", Access::write, a.slots);
  f("rows", Access::write, a.rows);
}
template <class F>
void visit(TakeRowsArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("index", Access::read, a.index);
  f("out", Access::write, a.out);
}
template <class F>
void visit(SumRowsArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("index", Access::read, a.index);
  f("out", Access::write, a.out);
}
template <class F>
void visit(ScaleRowsArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("factors", Access::read, a.factors);
  f("out", Access::write, a.out);
}
template <class F>
void visit(ScaleRowsBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("factors", Access::read, a.factors);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
  f("dfactors", Access::write, a.dfactors);
}

}  // namespace megatron::kernels
