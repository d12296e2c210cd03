// When each action of a pipeline runs, in simulated time.
#pragma once

#include <vector>

#include "parallel/schedule.h"

namespace megatron::parallel {

// By which with_transfers() gives messages their places: actions that take equally long, and
// messages that take a little, so that of two stages the one that runs ahead sends first.
inline constexpr ActionTimes kPlacingTimes{1, 1, 1, 1.0 / 16};

struct Interval {
  double begin = 0, end = 0;
};

// Of each stage's list, action by action: an action begins when the one before it has ended, the
// virtual stage of the model that it needs has ended, and what that one made has arrived. Throws Error as
// simulate() does.
std::vector<std::vector<Interval>> timeline(const PipelineShape& shape,
                                            const std::vector<Schedule>& stages,
                                            const ActionTimes& times);

// Micro-batches that the lists speak of: the highest one, and one.
int count_micro_batches(const std::vector<Schedule>& stages);

// Whether a list has an action `weight` for a chunk and micro-batch; row after row of
// micro-batches.
std::vector<bool> deferred_weights(const PipelineShape& shape, const Schedule& schedule,
                                   int micro_batches);

}  // namespace megatron::parallel
