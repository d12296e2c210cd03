#include "ops/auxiliary_loss.h"

namespace megatron::ops {
namespace {

struct AuxiliaryLossAttributes {
  double coefficient;
};

void auxiliary_loss_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& weights = backward.saved(0);
  Tensor dlosses = backward.empty(weights.shape(), weights.dtype(), "auxiliary_loss.dlosses");
  backward.kernels().weighted_sum(
      {.x = weights,
       .y = weights,
       .out = dlosses,
       .x_weight = backward.attributes<AuxiliaryLossAttributes>().coefficient,
       .y_weight = 0},
      backward.stream());
  backward.set(0, dlosses);
}

}  // namespace

void auxiliary_loss(Tape& tape, const Var& losses, const Tensor& weights,
                    const AuxiliaryLoss& options) {
  tape.report(options.metric,
              {.values = losses.value, .weights = weights, .divided = options.divided});
  Node node{.name = "auxiliary_loss",
            .inputs = {losses.id},
            .saved = {weights},
            .dgrad = auxiliary_loss_dgrad,
            .root = true};
  node.attributes = AuxiliaryLossAttributes{options.coefficient};
  tape.record(std::move(node), {});
}

}  // namespace megatron::ops
