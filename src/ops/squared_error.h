// Squared-error loss of numeric scores.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// loss[t] = (scores[t] - targets[t])^2; the objective is sum_t weights[t] * loss[t]. scores [T,1],
// targets, weights f32 (f64) [T]; loss f32 (f64) [T], 0 where the weight is 0. The gradient of
// scores is computed in forward and kept; backward starts here, and the upstream gradient is 1.
Tensor squared_error(Tape& tape, const Var& scores, const Tensor& targets, const Tensor& weights);

}  // namespace megatron::ops
