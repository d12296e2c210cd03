#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace megatron::parallel {
namespace {

struct Counts {
  int warm_up = 0, live = 0;  // forwards before the first backward; most activations alive
};

Counts check(const Schedule& schedule, int micro_batches) {
  std::vector<int> forward(static_cast<size_t>(micro_batches), -1), backward = forward;
  Counts counts;
  int alive = 0, at = 0, backwards = 0;
  for (const Action& action : schedule) {
    const auto m = static_cast<size_t>(action.micro_batch);
    EXPECT_EQ(action.chunk, 0);
    if (action.kind == Action::Kind::forward) {
      EXPECT_EQ(forward.at(m), -1);
      forward[m] = at++;
      counts.live = std::max(counts.live, ++alive);
      counts.warm_up += backwards == 0;
    } else {
      EXPECT_EQ(action.kind, Action::Kind::backward);
      EXPECT_EQ(backward.at(m), -1);
      EXPECT_GE(forward[m], 0) << "backward of micro-batch " << m << " before its forward";
      EXPECT_EQ(action.micro_batch, backwards++) << "backwards come in ascending order";
      backward[m] = at++;
      --alive;
    }
  }
  EXPECT_EQ(at, 2 * micro_batches);
  EXPECT_EQ(alive, 0);
  return counts;
}

TEST(OneFOneB, ClosedForms) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int stage = 0; stage < stages; ++stage) {
      for (const int micro_batches : {1, 2, 3, 7, 8, 20}) {
        const Counts counts = check(one_f_one_b(stage, stages, micro_batches), micro_batches);
        EXPECT_EQ(counts.live, std::min(stages - stage, micro_batches));
        // The first forward of the steady state comes before its backward too.
        EXPECT_EQ(counts.warm_up, std::min(stages - stage, micro_batches));
      }
    }
  }
  EXPECT_TRUE(one_f_one_b(0, 1, 0).empty());
  EXPECT_THROW(one_f_one_b(2, 2, 4), InternalError);
}

TEST(OneFOneB, OneStageAlternates) {
  using Kind = Action::Kind;
  const Schedule expected = {
      {Kind::forward, 0, 0}, {Kind::backward, 0, 0}, {Kind::forward, 0, 1}, {Kind::backward, 0, 1}};
  EXPECT_EQ(one_f_one_b(0, 1, 2), expected);
}

TEST(OneFOneB, IsMegatrons) {
  const Json file = Json::read(MEGATRON_GOLDEN "/schedules/one_f_one_b.json");
  EXPECT_GE(file.as_array().size(), 9u);
  for (const Json& entry : file.as_array()) {
    const auto stages = static_cast<int>(entry["stages"].as_integer());
    const auto micro_batches = static_cast<int>(entry["micro_batches"].as_integer());
    for (int stage = 0; stage < stages; ++stage) {
      const Schedule schedule = one_f_one_b(stage, stages, micro_batches);
      std::string text;
      for (const Action& action : schedule) {
        text += fmt::format("{}{}{}", text.empty() ? "" : " ",
                            action.kind == Action::Kind::forward ? "F" : "B", action.micro_batch);
      }
      const auto at = static_cast<size_t>(stage);
      EXPECT_EQ(text, entry["actions"].as_array()[at].as_string());
      EXPECT_EQ(check(schedule, micro_batches).live, entry["max_live"].as_array()[at].as_integer());
    }
  }
}

// Runs all stages by their messages alone: nobody waits for ever.
TEST(OneFOneB, StagesNeverWaitForEachOtherInACircle) {
  for (const int stages : {1, 2, 3, 5}) {
    for (const int micro_batches : {1, 4, 9}) {
      std::vector<size_t> at(static_cast<size_t>(stages));
      const auto count = static_cast<size_t>(stages);
      std::vector<int> forwards(count), backwards(count);  // finished by each stage
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t s = 0; s < count; ++s) {
          const Schedule schedule = one_f_one_b(static_cast<int>(s), stages, micro_batches);
          if (at[s] == schedule.size()) continue;
          const Action action = schedule[at[s]];
          const bool forward = action.kind == Action::Kind::forward;
          const bool ready = forward ? s == 0 || forwards[s - 1] > action.micro_batch
                                     : s + 1 == count || backwards[s + 1] > action.micro_batch;
          if (!ready) continue;
          ++(forward ? forwards : backwards)[s];
          ++at[s];
          moved = true;
        }
      }
      for (size_t s = 0; s < count; ++s) EXPECT_EQ(backwards[s], micro_batches);
    }
  }
}

}  // namespace
}  // namespace megatron::parallel
