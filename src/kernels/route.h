// Routing: selects the experts of each token and their weights (Shazeer et al. 2017; Fedus et al.
// 2022; DeepSeek-AI 2024, 2.1.2).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

enum class RouterScore { softmax, sigmoid, sqrt_softplus };

struct RouterForm {
  RouterScore score = RouterScore::softmax;
  // For softmax only. True: softmax over all experts before k are chosen; false: softmax over the k
  // highest logits.
  bool softmax_first = false;
  bool normalised = false;  // divides the weights of a token by their sum + 1e-20
  double scale = 1;         // factor of all weights, applied last
  // Experts form `groups` groups of equal size, and only those of the `chosen_groups` best groups
  // can be chosen. A group's score is the sum of its `group_best` highest values.
  int64_t groups = 1, chosen_groups = 1, group_best = 1;

  bool operator==(const RouterForm&) const = default;
};

// s[t,:] = score(logits[t,:]), or logits[t,:] itself for a softmax after the choice. experts[t,:]
// are the k experts with the highest c = (selection if defined, else s) + bias, in descending
// order; among equal ones the lower number first. weights[t,:] are their s, normalised and scaled
// according to `form`; neither selection nor bias changes them. logits, selection f32 or f64 [T,E],
// bias [E] and weights [T,k] of that type, experts i32 [T,k], all contiguous. NaN is the lowest
// value of c.
struct RouteArgs {
  RouterForm form;
  Tensor logits, bias, selection;
  Tensor experts, weights;
};

// dlogits [T,E] from the gradient `dweights` of weights, with the choice of experts fixed.
struct RouteBackwardArgs {
  RouterForm form;
  Tensor logits, experts, dweights;
  Tensor dlogits;
};

// counts[e] = beta * counts[e] + number of experts[t,j] that are e, without those whose rows[t,j]
// is negative. experts, rows i32 [T,k] (rows undefined: counts all), counts f32 or f64 [E].
struct ExpertCountsArgs {
  Tensor experts, rows;
  Accumulate counts;
};

// shares[e] = counts[e] / sum of counts; 0 if the sum is 0. counts, shares f32 or f64 [E], of one
// type.
struct ExpertSharesArgs {
  Tensor counts, shares;
};

// bias[e] += rate * sign(mean of counts - counts[e]) (Wang et al. 2024, algorithm 1). bias, counts
// f32 or f64 [E].
struct ExpertBiasArgs {
  double rate = 0;
  Tensor counts, bias;
};

void check(const RouteArgs& args);
void check(const RouteBackwardArgs& args);
void check(const ExpertCountsArgs& args);
void check(const ExpertSharesArgs& args);
void check(const ExpertBiasArgs& args);

template <class F>
void visit(RouteArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("bias", Access::read, a.bias);
  f("selection", Access::read, a.selection);
  f("experts", Access::write, a.experts);
  f("weights", Access::write, a.weights);
}
template <class F>
void visit(RouteBackwardArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("experts", Access::read, a.experts);
  f("dweights", Access::read, a.dweights);
  f("dlogits", Access::write, a.dlogits);
}
template <class F>
void visit(ExpertCountsArgs& a, F&& f) {
  f("experts", Access::read, a.experts);
  f("rows", Access::read, a.rows);
  f("counts", written(a.counts.beta), a.counts.out);
}
template <class F>
void visit(ExpertSharesArgs& a, F&& f) {
  f("counts", Access::read, a.counts);
  f("shares", Access::write, a.shares);
}
template <class F>
void visit(ExpertBiasArgs& a, F&& f) {
  f("counts", Access::read, a.counts);
  f("bias", Access::update, a.bias);
}

}  // namespace megatron::kernels
