#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// Contribution of an auxiliary loss to the objective, and its name in the log.
struct AuxiliaryLoss {
  std::string_view metric;  // name of a mean among the model's metrics
  double coefficient = 1;
  bool divided = false;  // MetricReport: tensor-parallel ranks have different tokens
};

// Adds coefficient * sum_t weights[t] * losses[t] to the objective and reports the losses with
// these weights. losses, weights [T] of one type, f32 or f64. With the batch's weights
// (nn::Batch::weights, or those of this rank's tokens) it is normalised like the main loss in any
// layout: the metric is the mean over the tokens, and the objective contains `coefficient` times
// the metric, once for each layer that calls this. Backward starts here; the upstream gradient is
// 1.
void auxiliary_loss(Tape& tape, const Var& losses, const Tensor& weights,
                    const AuxiliaryLoss& options);

}  // namespace megatron::ops
