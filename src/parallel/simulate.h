// Simulated times of each action of a pipeline.
#pragma once

#include <vector>

#include "parallel/schedule.h"

namespace megatron::parallel {

// Times by which with_transfers() places messages: actions take equally long, and messages a
// little, so that of two stages the one that is ahead sends first.
inline constexpr ActionTimes kPlacingTimes{1, 1, 1, 1.0 / 16};

struct Interval {
  double begin = 0, end = 0;
};

// Interval of each action of each stage's list: an action begins once the previous one has ended,
// the virtual stage that it depends on has ended, and that stage's output has arrived. Throws Error
// as simulate() does.
std::vector<std::vector<Interval>> timeline(const PipelineShape& shape,
                                            const std::vector<Schedule>& stages,
                                            const ActionTimes& times);

// Number of micro-batches in the lists: the highest index plus one.
int count_micro_batches(const std::vector<Schedule>& stages);

// True for each chunk and micro-batch for which the list has an action `weight`; one row of
// micro-batches per chunk.
std::vector<bool> deferred_weights(const PipelineShape& shape, const Schedule& schedule,
                                   int micro_batches);

}  // namespace megatron::parallel
