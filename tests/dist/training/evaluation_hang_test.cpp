// A rank that waits in an evaluation tells where: phase, layer, micro-batch and call.
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

// Comes too late to the `late`th call of a phase, of those that follow products, gather or send.
class Late final : public selftest::PassingGroup<Late> {
 public:
  struct When {
    std::string phase;
    int late = 0;
    int calls = 0;
  };
  Late(comm::Group& group, When& when) : PassingGroup(group), when_(&when) {}
  explicit Late(std::unique_ptr<comm::Group> group) : PassingGroup(std::move(group)) {}

  comm::Work all_reduce(Tensor t, comm::Reduce op, Stream& stream, std::string_view call) override {
    if (call == "row_linear") wait();
    return PassingGroup::all_reduce(t, op, stream, call);
  }
  comm::Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    wait();
    return PassingGroup::send(t, to, stream, call);
  }
  comm::Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    wait();
    return PassingGroup::all_gather(in, out, stream, call);
  }
  std::unique_ptr<comm::Group> split(int color, int key, int members) override {
    auto group = PassingGroup::split(color, key, members);
    static_cast<Late&>(*group).when_ = when_;
    return group;
  }

 private:
  void wait() {
    if (doing() == nullptr || doing()->state().phase != when_->phase) return;
    if (++when_->calls == when_->late)
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit));
  }
  When* when_ = nullptr;
};

// The report of a run of two ranks, the first of which comes too late.
std::string report(const std::string& flags, const std::string& phase, int late) {
  const TrainSettings settings =
      with_flags(deep_llama(), "--train-iters 1 --eval-interval 1 --eval-iters 2 " + flags);
  const std::unique_ptr<comm::Group> alone = comm::single();
  const RunPlan plan = make_run_plan(settings, *alone);
  try {
    comm::run_ranks(
        plan.settings.runtime.rank_count(),
        [&](comm::Group& world) {
          Late::When when{.phase = phase, .late = world.rank() == 0 ? late : -1};
          Late group(world, when);
          RankRun(plan, 1e12, group, {}).loop();
        },
        kLimit);
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

TEST(EvaluationHang, NamesPhaseLayerAndMicroBatchOfAValidation) {
  // Of each micro-batch two a layer, and the gather of the loss.
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

}  // namespace
}  // namespace megatron::training
