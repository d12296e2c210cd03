// A rank that waits during an evaluation reports its phase, layer, micro-batch and call. Phases
// that may take long are logged as such.
#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "comm/doing.h"
#include "comm/threads.h"
#include "dist/training/runs.h"
#include "selftest/passing_group.h"
#include "training/rank_run.h"

namespace megatron::training {
namespace {

constexpr double kLimit = 1.5;  // seconds that a call may take

// Delays the `late`th call of a phase, counting only calls that follow products, a gather, a send
// or a block that context-parallel ranks pass on.
class Late final : public selftest::PassingGroup<Late> {
 public:
  struct When {
    std::string phase;
    int late = 0;
    double seconds = 2 * kLimit;
    int64_t step = 1;
    int calls = 0;
  };
  Late(comm::Group& group, When& when) : PassingGroup(group), when_(&when) {}
  explicit Late(std::unique_ptr<comm::Group> group) : PassingGroup(std::move(group)) {}

  comm::Work make(comm::GroupCall call, Stream& stream) override {
    using enum comm::Operation;
    if ((call.operation == all_reduce && call.name == "row_linear") ||
        call.operation == all_gather || call.operation == send ||
        call.name.starts_with("context, keys and values"))
      wait();
    return PassingGroup::make(std::move(call), stream);
  }
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    auto group = PassingGroup::split(color, key, members);
    static_cast<Late&>(*group).when_ = when_;
    return group;
  }

 private:
  void wait() {
    if (doing() == nullptr) return;
    const comm::Doing::State state = doing()->state();
    if (state.phase != when_->phase || state.step != when_->step) return;
    if (++when_->calls == when_->late)
      std::this_thread::sleep_for(std::chrono::duration<double>(when_->seconds));
  }
  When* when_ = nullptr;
};

// A run whose first rank is late.
void run_late(const std::string& flags, const Late::When& late, comm::WaitLimits limits) {
  const settings::TrainSettings settings =
      with_flags(deep_llama(), "--eval-interval 1 --eval-iters 2 " + flags);
  const std::unique_ptr<comm::Group> alone = comm::single();
  const RunPlan plan = make_run_plan(settings, *alone);
  comm::run_ranks(
      plan.settings.runtime.rank_count(),
      [&](comm::Group& world) {
        Late::When when = late;
        if (world.rank() != 0) when.late = -1;
        Late group(world, when);
        RankRun(plan, 1e12, group, {}).loop();
      },
      limits);
}

// The hang report if a rank comes too late.
std::string report(const std::string& flags, const std::string& phase, int late) {
  try {
    run_late("--train-iters 1 " + flags, {.phase = phase, .late = late}, kLimit);
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

// The log if a rank is late in a step and then continues.
std::string log_of(const std::string& phase, int64_t step) {
  ::testing::internal::CaptureStderr();
  run_late("--train-iters 2 --tensor-model-parallel-size 2",
           {.phase = phase, .late = 1, .seconds = 0.4, .step = step}, {60, 0.1});
  return ::testing::internal::GetCapturedStderr();
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

TEST(EvaluationHang, NamesPhaseLayerAndMicroBatchOfAValidation) {
  // Each micro-batch makes two calls per layer and one gather of the loss.
  const std::string text = report("--tensor-model-parallel-size 2", "validation", 9 + 3);
  expect_contains(text,
                  "rank 1: step 1, validation, layer layers.1, micro-batch 1; in all_reduce "
                  "'row_linear'");
}

TEST(EvaluationHang, NamesThoseOfTheTestSet) {
  const std::string text = report("--tensor-model-parallel-size 2", "test", 1);
  expect_contains(text,
                  "rank 1: step 1, test, layer layers.0, micro-batch 0; in all_reduce "
                  "'row_linear'");
}

TEST(EvaluationHang, NamesTheMicroBatchThatAStageWaitsFor) {
  const std::string text = report("--pipeline-model-parallel-size 2", "validation", 2);
  expect_contains(text,
                  "rank 1: step 1, validation, micro-batch 0; in recv 'activation, micro-batch 1");
}

TEST(EvaluationHang, NamesTheLayerWhoseParametersAreGathered) {
  const std::string text =
      report("--ranks 2 --data-parallel-sharding-strategy optim_grads_params", "validation", 3);
  expect_contains(text, "rank 1: step 1, validation, layer layers.1, micro-batch 0; in all_gather");
}

// Each layer passes three blocks to the next of four ranks.
TEST(RingHang, NamesRankLayerAndBlock) {
  const std::string text = report("--context-parallel-size 4", "forward", 3 + 2);
  for (const int rank : {1, 2, 3})
    expect_contains(text, fmt::format("rank {}: step 1, forward, layer layers.1, micro-batch 0; in "
                                      "all_to_all 'context, keys and values, block 2' (call 5 of "
                                      "'cp'",
                                      rank));
  expect_contains(text, "rank 0: step 1, forward, layer layers.1, micro-batch 0; in no call");
  expect_contains(text, "rank 0 has not arrived");
}

TEST(LongWait, IsAWarningInAnyStepButTheFirst) {
  const std::string first = log_of("forward", 1), second = log_of("forward", 2);
  expect_contains(first, "rank 0: step 1, forward, layer layers.0, micro-batch 0; in no call for");
  expect_contains(first, "(this may take long)");
  EXPECT_EQ(first.find("warning rank"), std::string::npos) << first;
  expect_contains(second, "rank 0: step 2, forward, layer layers.0, micro-batch 0; in no call for");
  expect_contains(second, "warning rank 1 has waited");
}

TEST(LongWait, IsUsualInAValidation) {
  const std::string text = log_of("validation", 2);
  expect_contains(text,
                  "rank 0: step 2, validation, layer layers.0, micro-batch 0; in no call for");
  expect_contains(text, "(this may take long)");
}

}  // namespace
}  // namespace megatron::training
