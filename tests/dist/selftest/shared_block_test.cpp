// Blocks that several layers share have the results of one rank in other layouts: their gradients
// are sums over uses on several pipeline stages, and all copies stay equal.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

using parallel::ScheduleKind;
using Granularity = models::RecomputeOptions::Granularity;

constexpr int64_t kSharedTokens = 12, kSharedSequences = 4;

// Four uses of one block: stages have consecutive ones, every second one, or the first and last.
models::Model shared_model() {
  return models::model_from_config_json(Json::parse(R"({
    "model_type": "zamba2", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "hybrid", "hybrid", "hybrid"], "num_attention_heads": 4,
    "intermediate_size": 24, "adapter_rank": 3, "use_shared_attention_adapter": true,
    "use_mem_rope": true, "mamba_d_state": 6, "n_mamba_heads": 4, "mamba_ngroups": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 0.001953125, "initializer_range": 0.2})"));
}

Experiment shared_experiment(DeviceKind device, DType type, const Environment& environment) {
  return {shared_model(),   device,        type,        type, settings::LossScope::token,
          kSharedSequences, kSharedTokens, environment, {},   false};
}

void expect_shared(const Outcome& found, const Outcome& expected, double bound,
                   const Layout& layout) {
  Report report(layout.str());
  compare_outcomes(layout.str(), found, expected, bound, report);
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 60) << report.text();
}

const std::vector<Layout> kSharedStages = {
    {.pipeline = {.stages = 2}, .micro_batch = 1},
    {.pipeline = {.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2}, .micro_batch = 1},
    {.pipeline = {.kind = ScheduleKind::zero_bubble_v, .stages = 2, .chunks = 2},
     .micro_batch = 1}};

TEST(SharedBlocks, GiveWhatOneRankGives) {
  const Environment environment;
  const Experiment all = shared_experiment(DeviceKind::reference, DType::f64, environment);
  const std::vector<optim::Method> methods = {optim::Method::sgd};
  const Outcome one = all.run({.micro_batch = 4}, methods);
  std::vector<Layout> layouts = kSharedStages;
  layouts.push_back({.tp = 2, .sequence = true, .pipeline = {.stages = 2}, .micro_batch = 2});
  layouts.push_back({.dp = 2,
                     .pipeline = {.stages = 2},
                     .sharding = parallel::Sharding::parameters,
                     .overlap = true,
                     .micro_batch = 1});
  layouts.push_back({.tp = 2, .micro_batch = 4});
  layouts.push_back({.cp = 2, .micro_batch = 2});
  layouts.push_back({.cp = 2, .exchange = parallel::ContextExchange::a2a, .micro_batch = 2});
  layouts.push_back({.dp = 2,
                     .pipeline = {.stages = 2},
                     .sharding = parallel::Sharding::gradients,
                     .micro_batch = 1});
  layouts.push_back({.pipeline = {.stages = 2},
                     .recompute = {.granularity = Granularity::full},
                     .micro_batch = 2});
  for (const Layout& layout : layouts)
    expect_shared(all.run(layout, methods), one, tolerance::kLayoutFp64, layout);
}

// The uses of the block, and those of the embedding, which layer 0 reads twice, are added in the
// order of a single stage.
TEST(SharedBlocks, StagesAndRecomputeDoNotChangeABit) {
  const Environment environment;
  const Experiment all = shared_experiment(DeviceKind::cpu, DType::f32, environment);
  const std::vector<optim::Method> methods = {optim::Method::sgd, optim::Method::adam};
  const Outcome one = all.run({.micro_batch = 1}, methods);
  std::vector<Layout> layouts = kSharedStages;
  for (const int64_t together : {1, 2})
    layouts.push_back(
        {.recompute = {.granularity = Granularity::full, .layers = together}, .micro_batch = 1});
  const parallel::LayerPlacement embedding_alone = {.layout = "E|ttttL"};
  for (const Granularity granularity : {Granularity::none, Granularity::full})
    layouts.push_back({.pipeline = {.stages = 2},
                       .layers = embedding_alone,
                       .recompute = {.granularity = granularity},
                       .micro_batch = 1});
  for (const Layout& layout : layouts) expect_shared(all.run(layout, methods), one, 0, layout);
}

}  // namespace
}  // namespace megatron::selftest
