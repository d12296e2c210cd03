// Short steps of a pipeline from which plans extrapolate long ones.
#pragma once

#include <cstdint>

#include "parallel/schedule.h"

namespace megatron::parallel {

// Numbers of micro-batches of two steps that represent one of `all` on this stage: of the stage's
// actions and transfers (parallel/pipeline.h), those that `more` has beyond `less` are also in
// `less`, and occur once more for each further more - less micro-batches, which divides all - less.
// Both are `all` if a step is no longer than that.
struct ShortSteps {
  int64_t less = 0, more = 0;
};
ShortSteps short_steps(const PipelineShape& shape, int stage, int64_t all);

}  // namespace megatron::parallel
