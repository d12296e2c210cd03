// Squared-error loss of numeric scores (a reward model).
#pragma once

#include "kernels/elements.h"

namespace megatron::kernels {

// loss[t] = (x[t] - target[t])^2, dx[t] = 2 weight[t] (x[t] - target[t]); both 0 if the weight is
// 0. x [T] of a floating type; targets, weights, loss f32 (f64) [T]; dx as x, or undefined: not
// computed. All contiguous; computed in f32 (f64).
struct SquaredErrorArgs {
  Tensor x, targets, weights;
  Tensor loss, dx;

  static constexpr auto kElements =
      elements("squared_error", ElementLayout::contiguous, input("x", &SquaredErrorArgs::x),
               input("targets", &SquaredErrorArgs::targets).wide(),
               input("weights", &SquaredErrorArgs::weights).wide(),
               output("loss", &SquaredErrorArgs::loss).wide(),
               output("dx", &SquaredErrorArgs::dx).optional());
};

}  // namespace megatron::kernels
