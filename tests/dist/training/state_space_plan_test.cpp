// Runs of state spaces need what their plans say, however their heads, groups and tokens are
// divided: memory of every class and traffic.
#include "dist/training/executed_run.h"
#include "dist/training/runs.h"

namespace megatron::training {
namespace {

constexpr const char* kHybrid =
    "--hybrid-layer-pattern M*M- --mamba-num-heads 8 --mamba-head-dim 4 --mamba-state-dim 6 ";

// With one group tensor-parallel ranks share it, and so do ranks that exchange heads for tokens.
TEST(StateSpacePlan, IsWhatIsExecuted) {
  for (const std::string layout :
       {"--mamba-num-groups 2 --tensor-model-parallel-size 2",
        "--mamba-num-groups 1 --tensor-model-parallel-size 2 --sequence-parallel --bf16",
        "--mamba-num-groups 1 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--recompute-granularity full",
        "--mamba-num-groups 2 --context-parallel-size 4 --seq-length 24 --reset-attention-mask",
        "--hybrid-layer-pattern MMMM --mamba-num-groups 2 --context-parallel-size 4 --seq-length "
        "24",
        "--mamba-num-groups 2 --context-parallel-size 2 --cp-comm-type all_gather --bf16",
        "--mamba-num-groups 2 --context-parallel-size 2 --cp-comm-type a2a --reset-attention-mask",
        "--mamba-num-groups 1 --context-parallel-size 2 --cp-comm-type a2a",
        "--mamba-num-groups 1 --tensor-model-parallel-size 2 --context-parallel-size 2 "
        "--sequence-parallel --reset-attention-mask"}) {
    SCOPED_TRACE(layout);
    const SettledRun run = settle_run(with_flags(deep_llama(), kHybrid + layout));
    settings::TrainSettings settled = run.settings;
    const plan::Plan plan = make_plan(settled, run.model, run.vocabulary, {});
    const std::vector<ExecutedRank> ranks = executed(run, 2);
    expect_planned(plan, ranks);
    constexpr auto kMessages = static_cast<size_t>(MemoryClass::communication);
    for (const ExecutedRank& rank : ranks)
      EXPECT_EQ(rank.memory[kMessages], ranks[0].memory[kMessages]) << "also between two others";
  }
}

}  // namespace
}  // namespace megatron::training
