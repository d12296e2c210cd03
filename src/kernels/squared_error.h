// The loss of scores that are numbers (a reward model).
#pragma once

#include "kernels/access.h"

namespace megatron::kernels {

// loss[t] = (x[t] - target[t])^2, dx[t] = 2 weight[t] (x[t] - target[t]); both 0 where the weight is 0. x [T]
// of a floating type; targets, weights, loss f32 (f64) [T]; dx as x, or undefined: not wanted. All
// contiguous; computed in f32 (f64).
struct SquaredErrorArgs {
  Tensor x, targets, weights;
  Tensor loss, dx;
};

void check(const SquaredErrorArgs& args);

template <class F>
void visit(SquaredErrorArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("targets", Access::read, a.targets);
  f("weights", Access::read, a.weights);
  f("loss", Access::write, a.loss);
  f("dx", Access::write, a.dx);
}

}  // namespace megatron::kernels
