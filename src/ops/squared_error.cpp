#include "ops/squared_error.h"

#include "base/error.h"

namespace megatron::ops {
namespace {

void squared_error_dgrad(Backward& backward) { backward.set(0, backward.saved(0)); }

}  // namespace

Tensor squared_error(Tape& tape, const Var& scores, const Tensor& targets, const Tensor& weights) {
  const Tensor& x = scores.value;
  MG_ASSERT(x.rank() == 2 && x.size(1) == 1);
  const Shape tokens = {x.size(0)};
  const Tensor loss = tape.empty(tokens, kernels::accumulator(x.dtype()), "squared_error.loss");
  const Tensor dx =
      tape.recording() ? tape.empty(x.shape(), x.dtype(), "squared_error.dx") : Tensor();
  tape.kernels().squared_error({.x = x.view(tokens),
                                .targets = targets,
                                .weights = weights,
                                .loss = loss,
                                .dx = dx.defined() ? dx.view(tokens) : Tensor()},
                               tape.stream());
  if (tape.recording())
    tape.record({.name = "squared_error",
                 .inputs = {scores.id},
                 .saved = {dx},
                 .dgrad = squared_error_dgrad,
                 .root = true},
                {});
  return loss;
}

}  // namespace megatron::ops
