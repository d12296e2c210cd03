// Nested launchers: the ranks are those of the inner launcher.
#include "dist/cli/rank_processes.h"
#include "golden/cli/tiny_run.h"
#include "text.h"

namespace megatron::testing {
namespace {

constexpr const char* kStepOfOne =
    "SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 "
    "SLURM_LOCALID=0";
constexpr const char* kTorchrunOfOne =
    "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1";

class NestedLaunchers : public ::testing::Test {
 protected:
  Words train(const Words& more = {}) const {
    return with(words("train --mock-data --vocab-size 64 --num-layers 1 --hidden-size 16 "
                      "--num-attention-heads 2 --seq-length 16 --micro-batch-size 1 --lr 1e-3 "
                      "--train-iters 2 --threads 1 --log-interval 1"),
                more);
  }
  // From the second step's line to the end of its loss.
  static std::string loss(const std::string& text) {
    const size_t at = text.find("loss ", std::min(text.find(" 2/2 |"), text.size()));
    return at == text.npos ? "" : text.substr(at, text.find(" |", at) - at);
  }
  std::string loss_of_threads() const {
    const Outcome r = place_.run(train({"--ranks", "2"}));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(loss(r.out), "") << r.out;
    return loss(r.out);
  }
  Workplace place_;
};

TEST_F(NestedLaunchers, TorchrunInAStepOfSlurm) {
  const auto ranks = over_tcp(place_, {train(), train()}, kStepOfOne);
  for (const Launched& rank : ranks) EXPECT_EQ(rank.code, 0) << rank.text;
  EXPECT_EQ(loss(ranks[0].text), loss_of_threads());
  EXPECT_EQ(loss(ranks[1].text), "") << "rank 1 trains alone: " << ranks[1].text;
  EXPECT_EQ(count(ranks[0].text, "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=1"), 1u) << ranks[0].text;
  EXPECT_EQ(count(ranks[1].text, "SLURM_"), 0u) << ranks[1].text;
}

TEST_F(NestedLaunchers, MpiInTorchrun) {
  if (!has_mpi()) GTEST_SKIP() << kNoMpi;
  const std::string expected = loss_of_threads();
  const Launched mpi = over_mpi(place_, {train(), train()}, kTorchrunOfOne);
  EXPECT_EQ(mpi.code, 0) << mpi.text;
  EXPECT_EQ(loss(mpi.text), expected) << mpi.text;
  EXPECT_EQ(count(mpi.text, "are ignored: RANK=0, WORLD_SIZE=1"), 1u) << mpi.text;
  // A program started by `launch` uses the ranks of `launch`, whatever launcher surrounds it.
  const Launched launched =
      run_script(place_, "exec env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " +
                             container_settings() + MEGATRON_BINARY +
                             shell_words(with(words("launch -np 2 --no-prefix"), train())) + "\n");
  EXPECT_EQ(launched.code, 0) << launched.text;
  EXPECT_EQ(loss(launched.text), expected) << launched.text;
}

TEST_F(NestedLaunchers, AProcessAloneAmongTasksSaysSo) {
  const Launched run = run_script(
      place_, "exec env SLURM_JOB_ID=7 SLURM_NTASKS=4 " MEGATRON_BINARY + shell_words(train()));
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_EQ(count(run.text, "this process runs alone: SLURM_NTASKS is 4"), 1u) << run.text;
}

}  // namespace
}  // namespace megatron::testing
