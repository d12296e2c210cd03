// Losses that balance the load of experts (Fedus et al. 2022, 2.2) and keep a router's logits small
// (Zoph et al. 2022, 3.3).
#pragma once

#include "kernels/route.h"

namespace megatron::kernels {

// Segments are T / S consecutive tokens. p[t,:] is the softmax of logits[t,:], or its sigmoid or
// square root of softplus divided by its sum + 1e-20; l[t] = log sum exp logits[t,:]. Over the
// tokens of each segment:
//   sums[s,e]    sum of p[t,e]
//   counts[s,e]  number of tokens with e among their k highest logits (lower numbers win ties)
//   squares[s]   sum of l[t]^2
//   entropy[s]   sum of -sum over e of p[t,e] log p[t,e]
// A token with counted[t] < 0 is left out. counted i32 [T]; undefined: all tokens count.
// logits f32 or f64 [T,E], all results of that type, [S,E] and [S], contiguous. Sums are in blocks
// fixed by the shape.
struct RouterSumsArgs {
  RouterScore score = RouterScore::softmax;
  int64_t k = 1;
  Tensor logits, counted;
  Tensor sums, counts, squares, entropy;
};

// dlogits[t,:] += weight * d/dlogits[t,:] (balance * sum over e of counts[s,e] p[t,e] + z *
// l[t]^2), where s is the segment of t and the counts are fixed, unless counted[t] < 0. counts may
// include other tokens. weight: 0-d f64; counted as above.
struct RouterLossBackwardArgs {
  RouterScore score = RouterScore::softmax;
  double balance = 0, z = 0;
  Tensor logits, counts, weight, counted;
  Tensor dlogits;
};

void check(const RouterSumsArgs& args);
void check(const RouterLossBackwardArgs& args);

template <class F>
void visit(RouterSumsArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("counted", Access::read, a.counted);
  f("sums", Access::write, a.sums);
  f("counts", Access::write, a.counts);
  f("squares", Access::write, a.squares);
  f("entropy", Access::write, a.entropy);
}
template <class F>
void visit(RouterLossBackwardArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("counts", Access::read, a.counts);
  f("weight", Access::read, a.weight);
  f("counted", Access::read, a.counted);
  f("dlogits", Access::update, a.dlogits);
}

}  // namespace megatron::kernels
