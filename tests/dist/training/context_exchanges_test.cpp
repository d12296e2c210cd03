// What plans say of each exchange of context-parallel ranks is what ranks execute: calls, bytes,
// overlap, and memory.
#include <algorithm>
#include <utility>

#include "dist/training/executed_run.h"
#include "dist/training/runs.h"
#include "training/plan/compare_exchanges.h"

namespace megatron::training {
namespace {

TEST(ContextExchanges, ArePlannedAsExecuted) {
  // The share of p2p's bytes that overlaps with compute: all but the first block of backward, of
  // n - 1 blocks in forward, as many in backward with their gradients in f32, and in recompute.
  for (const auto& [flags, overlapped] :
       {std::pair("--context-parallel-size 2", 2. / 3),
        {"--context-parallel-size 4 --micro-batch-size 1", 8. / 9},
        {"--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel", 2. / 3},
        {"--context-parallel-size 2 --recompute-granularity full --mlp-chunks-for-training 3",
         3. / 4},
        {"--context-parallel-size 2 --num-query-groups 4 --bf16", 3. / 4}}) {
    const settings::TrainSettings given = with_flags(deep_llama(), flags);
    const SettledRun run = settle_run(given);
    const auto planned = compare_exchanges(run.settings, run.model);
    ASSERT_TRUE(planned.has_value());
    EXPECT_EQ(planned->layers, 4);
    EXPECT_EQ(planned->given, std::vector<std::string>{"p2p"});
    for (const plan::ContextExchange& of_plan : planned->all) {
      const std::string what = fmt::format("{} {}", flags, of_plan.name);
      ASSERT_EQ(of_plan.refused, "") << what;
      const ExecutedRank rank =
          executed(settle_run(with_flags(given, "--cp-comm-type " + of_plan.name)), 2)[0];
      EXPECT_EQ(of_plan.calls, rank.exchange.calls) << what;
      EXPECT_EQ(of_plan.sent, rank.exchange.sent) << what;
      EXPECT_EQ(of_plan.overlapped, rank.exchange.overlapped) << what;
      EXPECT_EQ(of_plan.activations,
                rank.memory[static_cast<size_t>(MemoryClass::activations)] +
                    rank.memory[static_cast<size_t>(MemoryClass::communication)])
          << what;
      EXPECT_GT(of_plan.sent, 0) << what;
      EXPECT_DOUBLE_EQ(of_plan.overlapped, of_plan.name == "p2p" ? overlapped * of_plan.sent : 0)
          << what;
    }
  }
}

// Exchanges on two levels, and of what windows see, which is asked for at once.
TEST(ContextExchanges, OfLevelsAndWindowsArePlannedAsExecuted) {
  const std::string four = "--context-parallel-size 4 --micro-batch-size 1 ",
                    levels = "--hierarchical-context-parallel-sizes 2 2 --cp-comm-type a2a+p2p ",
                    window = "--window-size 2,0 ";
  const auto expect_planned = [&](const std::string& flags) {
    const SettledRun run = settle_run(with_flags(deep_llama(), four + flags));
    const auto planned = compare_exchanges(run.settings, run.model);
    const auto found =
        std::ranges::find(planned->all, planned->given[0], &plan::ContextExchange::name);
    EXPECT_EQ(found->refused, "") << flags;
    const ExecutedRank rank = executed(run, 2)[0];
    EXPECT_EQ(found->calls, rank.exchange.calls) << flags;
    EXPECT_EQ(found->sent, rank.exchange.sent) << flags;
    EXPECT_EQ(found->overlapped, rank.exchange.overlapped) << flags;
    EXPECT_EQ(found->activations, rank.memory[static_cast<size_t>(MemoryClass::activations)] +
                                      rank.memory[static_cast<size_t>(MemoryClass::communication)])
        << flags;
    return *found;
  };
  const plan::ContextExchange two = expect_planned(levels), all = expect_planned("");
  EXPECT_GT(two.overlapped, 0);
  EXPECT_LT(two.overlapped, two.sent);
  EXPECT_LT(expect_planned(levels + window).sent, two.sent);
  for (const std::string exchange : {"--cp-comm-type p2p ", "--cp-comm-type all_gather "}) {
    const plan::ContextExchange seen = expect_planned(window + exchange);
    EXPECT_EQ(seen.overlapped, 0);
    EXPECT_LT(seen.sent, all.sent / 2);
  }
}

// State spaces hand a state on, or exchange heads.
TEST(ContextExchanges, OfStateSpacesArePlannedAsExecuted) {
  const settings::TrainSettings given =
      with_flags(deep_llama(),
                 "--context-parallel-size 2 --hybrid-layer-pattern M*M- --mamba-num-heads 8 "
                 "--mamba-head-dim 4 --mamba-num-groups 2 --mamba-state-dim 6");
  const SettledRun run = settle_run(given);
  const auto planned = compare_exchanges(run.settings, run.model);
  for (const plan::ContextExchange& of_plan : planned->all) {
    ASSERT_EQ(of_plan.refused, "") << of_plan.name;
    const ExecutedRank rank =
        executed(settle_run(with_flags(given, "--cp-comm-type " + of_plan.name)), 2)[0];
    EXPECT_EQ(of_plan.calls, rank.exchange.calls) << of_plan.name;
    EXPECT_EQ(of_plan.sent, rank.exchange.sent) << of_plan.name;
    EXPECT_EQ(of_plan.activations, rank.memory[static_cast<size_t>(MemoryClass::activations)] +
                                       rank.memory[static_cast<size_t>(MemoryClass::communication)])
        << of_plan.name;
  }
}

// Few key heads are cheap to gather; with many, heads are exchanged, unless they cannot be divided.
TEST(ContextExchanges, TheCheapestDependsOnTheShape) {
  const auto compared = [](const std::string& flags) {
    const SettledRun run = settle_run(with_flags(deep_llama(), flags));
    return *compare_exchanges(run.settings, run.model);
  };
  const plan::ContextExchanges grouped = compared("--context-parallel-size 2 --num-query-groups 1");
  EXPECT_EQ(grouped.cheapest()->name, "all_gather");
  const plan::ContextExchanges many =
      compared("--context-parallel-size 4 --num-query-groups 4 --micro-batch-size 1");
  EXPECT_EQ(many.cheapest()->name, "a2a");
  const plan::ContextExchanges odd =
      compared("--context-parallel-size 8 --num-query-groups 1 --micro-batch-size 1");
  EXPECT_NE(odd.all[2].refused.find("--cp-comm-type a2a divides"), std::string::npos);
  EXPECT_FALSE(
      compare_exchanges(settle_run(deep_llama()).settings, settle_run(deep_llama()).model));
}

}  // namespace
}  // namespace megatron::training
