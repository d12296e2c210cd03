// The actions of a long step are those of a short one with a part of it repeated.
#include "parallel/short_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "parallel/pipeline.h"

namespace megatron::parallel {
namespace {

// Actions of a step: kind, part, chunk, and the distance of the micro-batch from the latest one
// begun.
using List = std::vector<std::array<int, 3>>;

List list_of(const PipelineShape& shape, int stage, int64_t micro_batches, Receives receives) {
  std::vector<Schedule> stages;
  for (int s = 0; s < shape.stages; ++s)
    stages.push_back(shape.schedule(s, static_cast<int>(micro_batches)));
  List list;
  int begun = 0;
  for (const Step& step : with_transfers(shape, stages, stage, receives)) {
    const Action& action = step.action;
    if (step.is_transfer) {
      list.push_back({10 + static_cast<int>(step.transfer.kind), step.transfer.chunk,
                      step.transfer.micro_batch - begun});
      continue;
    }
    if (action.kind == Action::Kind::forward && action.chunk == 0) begun = action.micro_batch;
    list.push_back({static_cast<int>(action.kind) + 100 * action.part, action.chunk,
                    action.micro_batch - begun});
  }
  return list;
}

void expect_stands(const PipelineShape& shape, int stage, int64_t all, Receives receives) {
  const auto [less, more] = short_steps(shape, stage, all);
  ASSERT_LT(less, more);
  ASSERT_EQ((all - less) % (more - less), 0);
  const List a = list_of(shape, stage, less, receives), b = list_of(shape, stage, more, receives);
  const auto part = static_cast<std::ptrdiff_t>(b.size() - a.size());
  const auto at = std::ranges::mismatch(a, b).in2 - b.begin();
  List made(b.begin(), b.begin() + at);
  ASSERT_GE(at, part);
  EXPECT_TRUE(std::equal(b.begin() + at - part, b.begin() + at, b.begin() + at));
  for (int64_t i = less; i < all; i += more - less)
    made.insert(made.end(), b.begin() + at, b.begin() + at + part);
  made.insert(made.end(), a.begin() + at, a.end());
  EXPECT_EQ(made, list_of(shape, stage, all, receives))
      << name(shape.kind) << ", stage " << stage << " of " << shape.stages << ", group "
      << shape.group << ", " << all << " micro-batches, of " << less << " and " << more;
}

void expect_stand(const PipelineShape& shape, int64_t all) {
  for (const Receives receives : {Receives::waited_for, Receives::begun_ahead})
    for (int stage = 0; stage < shape.stages; stage += shape.stages < 5 ? 1 : 3)
      expect_stands(shape, stage, all, receives);
}

TEST(ShortSteps, StandForLongOnes) {
  for (const int stages : {2, 3, 4, 7, 13})
    for (const int64_t all : {100, 101, 107}) {
      expect_stand({.kind = ScheduleKind::one_f_one_b, .stages = stages}, all);
      expect_stand({.kind = ScheduleKind::zero_bubble_h1, .stages = stages}, all);
      expect_stand({.kind = ScheduleKind::zero_bubble_v, .stages = stages, .chunks = 2}, all);
    }
}

TEST(ShortSteps, StandForLongOnesInGroups) {
  for (const int stages : {2, 3, 4, 7})
    for (const int chunks : {2, 3})
      for (const int group : {stages, stages + 1, stages + 3})
        for (const int64_t all : {20 * group, 17 * group + stages}) {
          expect_stand({.kind = ScheduleKind::interleaved,
                        .stages = stages,
                        .chunks = chunks,
                        .group = group},
                       all);
        }
}

TEST(ShortSteps, StandForLongOnesWherePassesTakeTurns) {
  for (const int stages : {1, 2, 3, 7})
    for (const int64_t all : {100, 101, 107})
      expect_stand({.kind = ScheduleKind::one_f_one_b, .stages = stages, .parts = 5}, all);
  for (const int stages : {2, 3})
    for (const int64_t all : {20 * stages, 17 * (stages + 1) + stages})
      expect_stand({.kind = ScheduleKind::interleaved,
                    .stages = stages,
                    .chunks = 2,
                    .group = all % stages == 0 ? stages : stages + 1,
                    .parts = 3},
                   all);
}

TEST(ShortSteps, AreTheStepItselfWhereItIsShort) {
  for (const int64_t all : {1, 2, 5}) {
    const ShortSteps steps = short_steps({.stages = 4}, 1, all);
    EXPECT_EQ(steps.less, all);
    EXPECT_EQ(steps.more, all);
  }
  EXPECT_EQ(short_steps({.stages = 1}, 0, 1000).less, 2);  // all micro-batches are alike
  EXPECT_EQ(short_steps({.stages = 1}, 0, 1000).more, 3);
}

}  // namespace
}  // namespace megatron::parallel
