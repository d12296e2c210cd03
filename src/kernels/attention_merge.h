// Puts attention over parts of the keys together (Milakov & Gimelshein 2018; Liu et al. 2023).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// out and lse are the results of attention to some keys, part and part_lse those of attention to
// other keys (kernels/attention.h). out and merged_lse become the results for all of these keys:
//   merged_lse = log(exp(lse) + exp(part_lse))
//   out = exp(lse - merged_lse) * out + exp(part_lse - merged_lse) * part
// A query that sees no key of either has lse -infinity and out 0.
// out [B,T,N,D] f32 or f64; part as out, of any type (f64 for f64), all contiguous; lse, part_lse,
// merged_lse [B,N,T] of out's type; merged_lse is neither of the others.
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
