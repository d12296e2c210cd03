// Combines the results of attention over parts of the keys (Milakov & Gimelshein 2018; Liu et al.
// 2023).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// Given out and lse of attention to some keys, and part and part_lse of attention to other keys
// (kernels/attention.h), sets out and merged_lse to the results for all of these keys:
//   merged_lse = log(exp(lse) + exp(part_lse))
//   out = exp(lse - merged_lse) * out + exp(part_lse - merged_lse) * part
// A query that sees no key at all gets lse -infinity and out 0.
// out [B,T,N,D] f32 or f64; part [B,T,N,D] of any type (f64 if out is); lse, part_lse and
// merged_lse [B,N,T] of out's type. All are contiguous, and merged_lse must not alias the other
// two.
struct AttentionMergeArgs {
  Tensor part, part_lse, lse;
  Tensor out, merged_lse;
};

void check(const AttentionMergeArgs& args);

template <class F>
void visit(AttentionMergeArgs& a, F&& f) {
  f("part", Access::read, a.part);
  f("part_lse", Access::read, a.part_lse);
  f("lse", Access::read, a.lse);
  f("out", Access::update, a.out);
  f("merged_lse", Access::write, a.merged_lse);
}

}  // namespace megatron::kernels
