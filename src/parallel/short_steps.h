// Short steps of a pipeline from which long ones follow, for plans.
#pragma once

#include <cstdint>

#include "parallel/schedule.h"

namespace megatron::parallel {

// Numbers of micro-batches of two steps that stand for one of `all` on this stage: of the stage's
// actions and transfers (parallel/pipeline.h), what `more` has beyond `less` stands in `less`, too,
// and once more for each further more - less micro-batches, which divides all - less. Twice `all`
// where a step is no longer than that.
struct ShortSteps {
  int64_t less = 0, more = 0;
};
ShortSteps short_steps(const PipelineShape& shape, int stage, int64_t all);

}  // namespace megatron::parallel
