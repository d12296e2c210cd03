#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>

#include "base/error.h"
#include "base/json.h"

namespace megatron::parallel {
namespace {

struct Counts {
  int warm_up = 0, live = 0;  // forwards before the first backward; most activations held
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

std::string text_of(const Schedule& schedule) {
  std::string text;
  for (const Action& action : schedule) {
    const char* kind = action.kind == Action::Kind::forward ? "F" : "B";
    text +=
        fmt::format("{}{}{}.{}", text.empty() ? "" : " ", kind, action.micro_batch, action.chunk);
  }
  return text;
}

int most_live(const Schedule& schedule) {
  int live = 0, most = 0;
  for (const Action& action : schedule) {
    live += action.kind == Action::Kind::forward ? 1 : -1;
    most = std::max(most, live);
  }
  return most;
}

int integer(const Json& json, std::string_view key) {
  return static_cast<int>(json[key].as_integer());
}

// Actions that Megatron-LM ran on each stage, and the schedules that it refuses.
TEST(Schedule, IsMegatrons) {
  const Json file = Json::read(MEGATRON_GOLDEN "/pipeline/schedules.json");
  int refused = 0;
  for (const Json& entry : file.as_array()) {
    const int chunks = integer(entry, "chunks"), micro_batches = integer(entry, "micro_batches");
    PipelineShape shape;
    shape.kind = chunks == 0 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved;
    shape.stages = integer(entry, "stages");
    shape.chunks = std::max(chunks, 1);
    shape.group = integer(entry, "group");
    if (entry.contains("refused")) {
      ++refused;
      EXPECT_THROW(shape.schedule(0, micro_batches), Error);
      continue;
    }
    const bool forward_only = entry["forward_only"].as_bool();
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Schedule schedule = forward_only ? shape.forward_only(stage, micro_batches)
                                             : shape.schedule(stage, micro_batches);
      const auto at = static_cast<size_t>(stage);
      EXPECT_EQ(text_of(schedule), entry["actions"].as_array()[at].as_string());
      EXPECT_EQ(most_live(schedule), entry["most_live"].as_array()[at].as_integer());
    }
  }
  EXPECT_EQ(file.as_array().size(), 37u);
  EXPECT_EQ(refused, 6);
}

TEST(Schedule, WarmUpsAreMegatrons) {
  const Json file = Json::read(MEGATRON_GOLDEN "/pipeline/warmup_counts.json");
  EXPECT_GE(file.as_array().size(), 470u);
  for (const Json& entry : file.as_array()) {
    const auto number = [&](size_t i) {
      return static_cast<int>(entry.as_array()[i].as_integer());
    };
    const int stages = number(0), chunks = number(1), micro_batches = number(2);
    const int group = number(3) == 0 ? stages : number(3);
    const bool forward_only = number(4) != 0;
    if (stages == 1 && chunks > 0) continue;  // Megatron-LM refuses to run it
    for (int stage = 0; stage < stages; ++stage) {
      int warm_up = micro_batches * std::max(chunks, 1);
      if (!forward_only && chunks > 0)
        warm_up = interleaved_warm_up(stage, stages, micro_batches, chunks, group);
      if (!forward_only && chunks == 0) {
        const Schedule schedule = one_f_one_b(stage, stages, micro_batches);
        const auto backward = std::find_if(schedule.begin(), schedule.end(), [](const Action& a) {
          return a.kind == Action::Kind::backward;
        });
        warm_up = static_cast<int>(backward - schedule.begin());
        if (warm_up > stages - stage - 1) --warm_up;  // the steady state's first forward
      }
      EXPECT_EQ(warm_up, entry.as_array()[5].as_array()[static_cast<size_t>(stage)].as_integer());
    }
  }
}

TEST(Schedule, TablesAreMegatrons) {
  const Json file = Json::read(MEGATRON_GOLDEN "/pipeline/schedule_tables.json");
  EXPECT_EQ(file.as_array().size(), 9u);
  for (const Json& entry : file.as_array()) {
    const PipelineShape shape{ScheduleKind::interleaved, 1, integer(entry, "chunks"),
                              integer(entry, "group")};
    std::vector<std::pair<int64_t, int64_t>> expected, made;
    for (const Json& pair : entry["table"].as_array())
      expected.emplace_back(pair.as_array()[0].as_integer(), pair.as_array()[1].as_integer());
    for (const Action& action : shape.forward_only(0, integer(entry, "micro_batches")))
      made.emplace_back(action.micro_batch, action.chunk);
    EXPECT_EQ(made, expected);
  }
}

std::string refusal(int stages, int micro_batches, int group) {
  try {
    interleaved(0, stages, micro_batches, 2, group);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Interleaved, RefusalsNameNumbersAndFlags) {
  for (const auto& [stages, micro_batches, group] : {std::array{4, 8, 3}, {4, 5, 6}, {4, 9, 6}}) {
    const std::string text = refusal(stages, micro_batches, group);
    for (const std::string& word :
         {std::to_string(stages), std::to_string(micro_batches), std::to_string(group),
          std::string("--num-layers-per-virtual-pipeline-stage"),
          std::string("--microbatch-group-size-per-virtual-pipeline-stage"),
          std::string("--global-batch-size")}) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
    }
  }
  EXPECT_EQ(refusal(4, 10, 6), "");
  EXPECT_TRUE(interleaved(0, 4, 0, 2, 4).empty());
  // Evaluation takes any number.
  EXPECT_EQ((PipelineShape{ScheduleKind::interleaved, 4, 2, 0}.forward_only(1, 3).size()), 6u);
}

// The parts of a pair alternate, and a pair never contains two parts of the same micro-batch. All
// parts run in order, and stages never deadlock.
TEST(Overlapped, PairsOfDifferentMicroBatchesTakeTurns) {
  using Kind = Action::Kind;
  constexpr int kParts = 4;
  for (const auto& [stages, chunks] :
       {std::pair{1, 1}, {2, 1}, {4, 1}, {7, 1}, {2, 2}, {3, 2}, {4, 3}}) {
    for (const int micro_batches : {stages, 2 * stages, 4 * stages}) {
      const PipelineShape shape{chunks == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved,
                                stages, chunks, 0, kParts};
      for (int stage = 0; stage < stages; ++stage) {
        const Schedule schedule = shape.schedule(stage, micro_batches);
        std::map<std::tuple<Kind, int, int>, int> done;  // parts, of kParts
        for (size_t i = 0; i < schedule.size(); ++i) {
          const Action& a = schedule[i];
          int& parts = done[{a.kind, a.chunk, a.micro_batch}];
          EXPECT_EQ(parts, a.part * kParts / a.parts);
          parts += kParts / a.parts;
          if (a.kind == Kind::backward) {
            EXPECT_EQ((done[{Kind::forward, a.chunk, a.micro_batch}]), kParts);
          }
          if (a.parts == 1 || a.kind == Kind::backward) continue;
          const Action& other = schedule.at(i + 1);
          EXPECT_EQ(other.kind, Kind::backward);
          EXPECT_EQ(other.part, a.part);
          EXPECT_FALSE(other.chunk == a.chunk && other.micro_batch == a.micro_batch);
        }
        EXPECT_EQ(done.size(), static_cast<size_t>(2 * chunks * micro_batches));
        for (const auto& [action, parts] : done) EXPECT_EQ(parts, kParts);
        const int warm_up = interleaved_warm_up(stage, stages, micro_batches, chunks, stages) + 1;
        EXPECT_EQ(live_micro_batches(schedule), std::min(warm_up + 1, chunks * micro_batches));
      }
      // A stage is only idle while the first micro-batches arrive and the last ones leave.
      const Simulated step = simulate(shape, micro_batches);
      EXPECT_LE(step.seconds, 3.0 * chunks * (micro_batches + 2.0 * stages)) << stages << chunks;
    }
  }
}

TEST(PipelineShape, PiecesAndBack) {
  for (const auto kind : {ScheduleKind::interleaved, ScheduleKind::zero_bubble_v}) {
    for (int stages = 1; stages <= 5; ++stages) {
      const PipelineShape shape{kind, stages, kind == ScheduleKind::zero_bubble_v ? 2 : 3, 0};
      std::vector<bool> seen(static_cast<size_t>(shape.virtual_stages()));
      for (int stage = 0; stage < stages; ++stage) {
        for (int chunk = 0; chunk < shape.chunks; ++chunk) {
          const int virtual_stage = shape.virtual_stage(stage, chunk);
          EXPECT_EQ(shape.stage_of(virtual_stage), stage);
          EXPECT_EQ(shape.chunk_of(virtual_stage), chunk);
          EXPECT_FALSE(seen.at(static_cast<size_t>(virtual_stage)));
          seen[static_cast<size_t>(virtual_stage)] = true;
        }
      }
    }
  }
  const PipelineShape v{ScheduleKind::zero_bubble_v, 4, 2, 0};
  EXPECT_EQ(v.virtual_stage(1, 1), 6);
  EXPECT_EQ((PipelineShape{ScheduleKind::interleaved, 4, 2, 0}.virtual_stage(1, 1)), 5);
}

// Narayanan et al. 2019 and 2021: idle time (stages - 1) (forward + backward), divided by the
// number of chunks.
TEST(Simulate, IdleTimeIsThePapers) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int groups : {1, 2, 5}) {
      const int micro_batches = groups * stages;
      const ActionTimes times{1, 1.5, 0.5, 0};
      const Simulated plain =
          simulate(PipelineShape{ScheduleKind::one_f_one_b, stages, 1, 0}, micro_batches, times);
      for (const double idle : plain.idle) EXPECT_DOUBLE_EQ(idle, 3.0 * (stages - 1));
      EXPECT_DOUBLE_EQ(plain.seconds, 3.0 * (micro_batches + stages - 1));
      for (int chunks = 2; chunks <= 4; ++chunks) {
        const ActionTimes of_chunk{1.0 / chunks, 1.5 / chunks, 0.5 / chunks, 0};
        const Simulated made = simulate(PipelineShape{ScheduleKind::interleaved, stages, chunks, 0},
                                        micro_batches, of_chunk);
        for (const double idle : made.idle) EXPECT_NEAR(idle, 3.0 * (stages - 1) / chunks, 1e-9);
      }
    }
  }
}

TEST(Simulate, MessagesTakeTime) {
  const PipelineShape shape{ScheduleKind::one_f_one_b, 3, 1, 0};
  // One micro-batch goes down and up the pipeline: two messages in each direction.
  EXPECT_DOUBLE_EQ(simulate(shape, 1, {1, 1, 1, 0.25}).seconds, 3 * 3 + 4 * 0.25);
}

TEST(Simulate, StagesThatWaitForEachOtherAreNamed) {
  using Kind = Action::Kind;
  const PipelineShape shape{ScheduleKind::one_f_one_b, 2, 1, 0};
  std::vector<Schedule> stages = {shape.schedule(0, 2), shape.schedule(1, 2)};
  stages[0] = {
      {Kind::forward, 0, 0}, {Kind::backward, 0, 0}, {Kind::forward, 0, 1}, {Kind::backward, 0, 1}};
  EXPECT_NO_THROW(simulate(shape, stages));
  stages[1] = {
      {Kind::forward, 0, 0}, {Kind::forward, 0, 1}, {Kind::backward, 0, 0}, {Kind::backward, 0, 1}};
  try {
    simulate(shape, stages);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("stage 0 of 2"), std::string::npos) << text;
    EXPECT_NE(text.find("backward of micro-batch 0, chunk 0"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace megatron::parallel
