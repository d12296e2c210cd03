#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "parallel/simulate.h"

namespace megatron::parallel {
namespace {

using Kind = Action::Kind;

std::vector<Schedule> stage_lists(const PipelineShape& shape, int micro_batches) {
  std::vector<Schedule> stages;
  for (int s = 0; s < shape.stages; ++s) stages.push_back(shape.schedule(s, micro_batches));
  return stages;
}

// Largest number of micro-batches between forward and weight gradient, over both chunks.
int most_unfinished(const Schedule& schedule) {
  int live = 0, most = 0;
  for (const Action& action : schedule) {
    if (action.kind == Kind::forward) most = std::max(most, ++live);
    if (action.kind == Kind::weight) --live;
  }
  return most;
}

// Each action occurs once, in the order forward, backward, weight; each kind is in ascending order
// of micro-batches within a chunk.
void check_order(const Schedule& schedule, int chunks, int micro_batches) {
  std::map<std::pair<Kind, int>, int> next;
  for (const Action& action : schedule) {
    EXPECT_EQ(action.micro_batch, (next[{action.kind, action.chunk}]++));
    if (action.kind == Kind::backward) {
      EXPECT_GT((next[{Kind::forward, action.chunk}]), action.micro_batch);
    }
    if (action.kind == Kind::weight) {
      EXPECT_GT((next[{Kind::backward, action.chunk}]), action.micro_batch);
    }
  }
  EXPECT_EQ(schedule.size(), static_cast<size_t>(3 * chunks * micro_batches));
}

TEST(ZeroBubble, EveryActionOnceAndInOrderForAnyNumberOfMicroBatches) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 0; micro_batches <= 20; ++micro_batches) {
      for (const int chunks : {1, 2}) {
        const PipelineShape shape{
            chunks == 1 ? ScheduleKind::zero_bubble_h1 : ScheduleKind::zero_bubble_v, stages,
            chunks, 0};
        const auto all = stage_lists(shape, micro_batches);
        for (const Schedule& schedule : all) check_order(schedule, chunks, micro_batches);
        EXPECT_NO_THROW(simulate(shape, all));
        EXPECT_EQ(shape.forward_only(0, micro_batches).size(),
                  static_cast<size_t>(chunks * micro_batches));
      }
    }
  }
}

// Qi et al. 2024, table 2: the idle time is (stages - 1) (forward + input - weight) if weight
// gradients take no longer than forwards, and memory is that of 1F1B's first stage.
TEST(ZeroBubbleH1, IdleTimeAndMemoryAreThePapers) {
  for (int stages = 1; stages <= 8; ++stages) {
    const PipelineShape shape{ScheduleKind::zero_bubble_h1, stages, 1, 0};
    for (const int micro_batches : {stages, stages + 1, 2 * stages, 20}) {
      for (const ActionTimes& times :
           {ActionTimes{1, 1, 1, 0}, ActionTimes{1, 1, 0.5, 0}, ActionTimes{1, 2, 1, 0},
            ActionTimes{2, 1, 1, 0}, ActionTimes{1, 1.25, 0.875, 0}}) {
        const Simulated made = simulate(shape, micro_batches, times);
        for (const double idle : made.idle)
          EXPECT_NEAR(idle, (stages - 1) * (times.forward + times.input - times.weight), 1e-9);
      }
      for (int stage = 0; stage < stages; ++stage)
        EXPECT_EQ(live_micro_batches(shape.schedule(stage, micro_batches), 0), stages);
    }
    EXPECT_LE(live_micro_batches(shape.schedule(0, 1), 0), 1);
    // A third of the idle time of 1F1B.
    const Simulated made = simulate(shape, 2 * stages),
                    plain = simulate(PipelineShape{ScheduleKind::one_f_one_b, stages, 1, 0},
                                     2 * stages);
    EXPECT_DOUBLE_EQ(3 * made.idle[0], plain.idle[0]);
  }
}

// Qi et al. 2024, section 6: if the three take equally long and there are enough micro-batches, a
// stage that has begun never waits. Stage s begins when the first micro-batch reaches it. Memory is
// 2 * stages halves of a stage, as with 1F1B.
TEST(ZeroBubbleV, NoIdleTimeAfterTheFillAndMemoryIsThePapers) {
  for (int stages = 1; stages <= 8; ++stages) {
    const PipelineShape shape{ScheduleKind::zero_bubble_v, stages, 2, 0};
    for (const int micro_batches : {2 * stages - 1, 2 * stages, 3 * stages + 1, 40}) {
      const auto all = stage_lists(shape, micro_batches);
      const auto intervals = timeline(shape, all, {});
      for (size_t s = 0; s < all.size(); ++s) {
        EXPECT_EQ(intervals[s].front().begin, static_cast<double>(s));
        EXPECT_EQ(intervals[s].back().end, static_cast<double>(s) + 6 * micro_batches);
        EXPECT_EQ(most_unfinished(all[s]), 2 * stages);
      }
      EXPECT_EQ(simulate(shape, all).seconds, 6 * micro_batches + stages - 1);
    }
    for (int micro_batches = 1; micro_batches < 2 * stages; ++micro_batches) {
      for (const Schedule& schedule : stage_lists(shape, micro_batches))
        EXPECT_LE(most_unfinished(schedule), std::min(2 * stages, 2 * micro_batches));
    }
  }
}

TEST(ZeroBubble, LiveMicroBatchesAreCountedByChunk) {
  const Schedule schedule = {{Kind::forward, 0, 0},  {Kind::forward, 1, 0}, {Kind::forward, 0, 1},
                             {Kind::backward, 0, 0}, {Kind::forward, 0, 2}, {Kind::weight, 0, 0},
                             {Kind::backward, 1, 0}, {Kind::forward, 1, 1}};
  EXPECT_EQ(live_micro_batches(schedule, 0), 3);
  EXPECT_EQ(live_micro_batches(schedule, 1), 1);  // without weight actions it ends with backward
  EXPECT_EQ(live_micro_batches(schedule, 2), 0);
  EXPECT_EQ(live_micro_batches(schedule), 4);
}

}  // namespace
}  // namespace megatron::parallel
