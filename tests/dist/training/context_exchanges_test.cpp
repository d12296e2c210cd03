// What plans say of each exchange of context-parallel ranks is what ranks execute: calls, bytes,
// overlap, and memory.
#include "training/plan/compare_exchanges.h"

#include "comm/traffic.h"
#include "dist/ranks.h"
#include "dist/training/runs.h"
#include "training/plan/make_plan.h"
#include "training/run_plan.h"

namespace megatron::training {
namespace {

class ExchangeCounter final : public comm::TrafficListener {
 public:
  void communicated(const comm::Traffic& traffic) override {
    if (!counts || !traffic.call.starts_with("context, ")) return;
    ++found.calls;
    found.sent += comm::sent_bytes(traffic);
    if (traffic.overlaps) found.overlapped += comm::sent_bytes(traffic);
  }
  bool counts = false;
  plan::ContextExchange found;
};

corpus::HostBatch whole_batch(const SettledRun& run, int64_t first) {
  const int64_t sequences = *run.settings.batch.micro_batch_size,
                length = *run.settings.batch.seq_length;
  corpus::HostBatch batch{.layout = {.sequences = sequences, .length = length}};
  for (int64_t i = 0; i < sequences * length; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i * 7 % 97));
    batch.labels.push_back(static_cast<int32_t>((i * 7 + 7) % 97));
    batch.positions.push_back(static_cast<int32_t>(i % length));
    batch.loss_mask.push_back(1);
  }
  for (int64_t i = 0; i < sequences; ++i) batch.sample_ids.push_back(first + i);
  return batch;
}

// Two steps on rank 0, of which the second is counted.
plan::ContextExchange executed(const SettledRun& run) {
  const settings::TrainSettings& s = run.settings;
  ExchangeCounter counter;
  testing::run_ranks(s.runtime.rank_count(), [&](comm::Group& group) {
    ExchangeCounter own;
    {
      const auto world = comm::observed(group, own);
      Runtime runtime({DeviceKind::cpu, 0}, 1);
      TrainedModel trained(run.model, s.precision.type(), 1, model_layout(s, run.model), *world,
                           runtime, step_options(s, run.model));
      trained.initialize(1);
      trained.step.begin(s.optimizer.config);
      std::vector<corpus::HostBatch> batches;
      for (int64_t i = 0; i < s.batch.schedule.micro_batches(0); ++i) {
        batches.push_back(whole_batch(run, i * *s.batch.micro_batch_size));
        corpus::keep_tokens(batches.back(), trained.ranks.tokens(*s.batch.micro_batch_size,
                                                                 *s.batch.seq_length));
      }
      for (const bool counts : {false, true}) {
        own.counts = counts;
        trained.step.run(batches, {.learning_rate = 1e-3});
        world->barrier("end of the step");  // reports the calls of other threads
      }
      for (const MemoryClass c : {MemoryClass::activations, MemoryClass::communication})
        own.found.activations += runtime.arena(c).high_water();
    }
    if (group.rank() == 0) counter.found = own.found;
  });
  return counter.found;
}

TEST(ContextExchanges, ArePlannedAsExecuted) {
  for (const char* flags :
       {"--context-parallel-size 2", "--context-parallel-size 4 --micro-batch-size 1",
        "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel",
        "--context-parallel-size 2 --recompute-granularity full --mlp-chunks-for-training 3",
        "--context-parallel-size 2 --num-query-groups 4 --bf16"}) {
    const settings::TrainSettings given = with_flags(deep_llama(), flags);
    const SettledRun run = settle_run(given);
    const auto planned = compare_exchanges(run.settings, run.model);
    ASSERT_TRUE(planned.has_value());
    EXPECT_EQ(planned->layers, 4);
    EXPECT_EQ(planned->given, std::vector<std::string>{"p2p"});
    for (const plan::ContextExchange& of_plan : planned->all) {
      const std::string what = fmt::format("{} {}", flags, of_plan.name);
      ASSERT_EQ(of_plan.refused, "") << what;
      const plan::ContextExchange run_so =
          executed(settle_run(with_flags(given, "--cp-comm-type " + of_plan.name)));
      EXPECT_EQ(of_plan.calls, run_so.calls) << what;
      EXPECT_EQ(of_plan.sent, run_so.sent) << what;
      EXPECT_EQ(of_plan.overlapped, run_so.overlapped) << what;
      EXPECT_EQ(of_plan.activations, run_so.activations) << what;
      EXPECT_GT(of_plan.sent, 0) << what;
      EXPECT_EQ(of_plan.overlapped, of_plan.name == "p2p" ? of_plan.sent : 0) << what;
    }
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
  EXPECT_FALSE(compare_exchanges(settle_run(deep_llama()).settings, settle_run(deep_llama()).model));
}

}  // namespace
}  // namespace megatron::training
