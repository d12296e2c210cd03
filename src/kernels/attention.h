// Scaled dot-product attention, never storing the T x S scores (Dao et al. 2022), grouped heads
// (Ainslie et al. 2023).
#pragma once

#include "kernels/access.h"
#include "kernels/dropout.h"

namespace megatron::kernels {

// Query head n attends with key head n / (N / K). Scores s = scale * q k^T, with a soft_cap above 0 (Gemma
// Team 2024) s = soft_cap * tanh(scale * q k^T / soft_cap); query i at position x = q_positions[b,i] sees
// key j when
//   max(window_start[b,i], x - window + 1, x - x % chunk) <= k_positions[b,j] <= x.
// Positions undefined: 0..T-1 and 0..S-1. window_start undefined, window 0, chunk 0: no such bound.
// window_start is in the units of the positions and confines a query to its document; what lies below a
// bound costs nothing where whole blocks of keys do. causal false: no upper bound. p = softmax(s), then
// dropout on p. out = p v. lse [B,N,T] = log sum exp of the seen scores, f32 (f64 for f64); a query that
// sees no key gives out 0 and lse -infinity. sinks [N] f32 (f64): one more score a head, neither scaled nor
// capped, whose value is 0 (Xiao et al. 2024): it counts in lse, which of a query that sees no key is the
// sink. q, out [B,T,N,D], k, v [B,S,K,D]; last dim contiguous, other strides
// free; one type. Sums in f32 (f64). A row's bits depend on its query and on the keys that it sees
// at their indices, not on the number of queries or keys. Of a sample, the keys behind the last one
// whose position lies between the lowest window_start and the highest q_positions are not read: a cache
// may hold anything there. Other keys that a query does not see have to be finite.
struct AttentionArgs {
  Tensor q, k, v;
  Tensor q_positions, k_positions;  // i32 [B,T], [B,S]; both or neither
  Tensor window_start;              // i32 [B,T]
  bool causal = true;
  double scale = 1;
  DropoutArgs::Mask
      dropout;  // element (sample, query position, key position) of stream hash(layer, head)
  Tensor out, lse;
  int64_t window = 0, chunk = 0;
  double soft_cap = 0;
  Tensor sinks;  // [N]
};

// lse is the forward's (of all keys, where the keys here are a part of them). dq, dk, dv as q, k,
// v: written, not added to. dsinks as sinks. Fixed order of summation: the same bits for any number of
// threads.
struct AttentionBackwardArgs {
  Tensor q, k, v, out, lse, dout;
  Tensor q_positions, k_positions, window_start;
  bool causal = true;
  double scale = 1;
  DropoutArgs::Mask dropout;
  Tensor dq, dk, dv;
  int64_t window = 0, chunk = 0;
  double soft_cap = 0;
  Tensor sinks;
  Accumulate dsinks;  // out undefined: not formed
};

// The two halves of the composed definition: p = softmax over the seen keys of scale * s, s
// [B,N,T,S] -> p, with lse as above. ds = scale * p * (dp - sum(dp * p)). p may be s, ds may be dp.
struct SoftmaxArgs {
  Tensor s, p, lse;
  Tensor q_positions, k_positions, window_start;
  bool causal = true;
  double scale = 1;
};
struct SoftmaxBackwardArgs {
  Tensor p, dp, ds;
  double scale = 1;
};

void check(const AttentionArgs& args);
void check(const AttentionBackwardArgs& args);
void check(const SoftmaxArgs& args);
void check(const SoftmaxBackwardArgs& args);

template <class F>
void visit(AttentionArgs& a, F&& f) {
  f("q", Access::read, a.q);
  f("k", Access::read, a.k);
  f("v", Access::read, a.v);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("window_start", Access::read, a.window_start);
  f("sinks", Access::read, a.sinks);
  f("sample_ids", Access::read, a.dropout.sample_ids);
  f("out", Access::write, a.out);
  f("lse", Access::write, a.lse);
}
template <class F>
void visit(AttentionBackwardArgs& a, F&& f) {
  f("q", Access::read, a.q);
  f("k", Access::read, a.k);
  f("v", Access::read, a.v);
  f("out", Access::read, a.out);
  f("lse", Access::read, a.lse);
  f("dout", Access::read, a.dout);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("window_start", Access::read, a.window_start);
  f("sinks", Access::read, a.sinks);
  f("sample_ids", Access::read, a.dropout.sample_ids);
  f("dq", Access::write, a.dq);
  f("dk", Access::write, a.dk);
  f("dv", Access::write, a.dv);
  f("dsinks", written(a.dsinks.beta), a.dsinks.out);
}
template <class F>
void visit(SoftmaxArgs& a, F&& f) {
  f("s", Access::read, a.s);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("window_start", Access::read, a.window_start);
  f("p", Access::write, a.p);
  f("lse", Access::write, a.lse);
}
template <class F>
void visit(SoftmaxBackwardArgs& a, F&& f) {
  f("p", Access::read, a.p);
  f("dp", Access::read, a.dp);
  f("ds", Access::write, a.ds);
}

}  // namespace megatron::kernels
