// A hybrid has the results of one rank in other layouts: state spaces, attention beside one, MLPs
// and experts, whole sequences and packed documents; and documents packed together have those of
// each alone.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "models/adapters/lora_config.h"
#include "selftest/experiment.h"
#include "selftest/preferences.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kHybridTokens = 68, kHybridSequences = 4;  // more than a chunk

models::Model hybrid_model() {
  const std::string norm = R"("normalization": "RMSNorm", "norm-epsilon": 0.001953125)",
                    space = R"("mamba-num-heads": 8, "mamba-head-dim": 4, "mamba-num-groups": 4,
    "mamba-state-dim": 6, "mamba-bias": true, "mamba-max-step": 2)",
                    attention = R"("num-attention-heads": 8, "num-query-groups": 4,
    "kv-channels": 4, "qkv-bias": false, "attention-output-bias": false)",
                    mlp = R"("ffn-hidden-size": 24, "activation": "squared_relu", "gated": false,
    "mlp-bias": false)";
  const std::string config = fmt::format(
      R"({{"model_type": "megatron", "hidden_dropout": 0, "attention_dropout": 0,
    "initializer_range": 0.2, "model": {{
      "num-layers": 4, "vocab-size": 61, "hidden-size": 32, "max-position-embeddings": {0},
      "untied": true, "layers": [
        {{"mixer": "state-space", {1}, "feed-forward": "none", {4}}},
        {{"mixer": "none", "feed-forward": "moe", "num-experts": 4, "moe-router-topk": 2,
          "moe-router-score-function": "sigmoid", "moe-router-normalized": true,
          "moe-shared-expert-intermediate-size": 16, {3}, {4}}},
        {{"mixer": "hybrid", {2}, {1}, "mamba-gate-order": "gate-only",
          "mamba-multipliers": [0.5, 1.5, 1.0, 2.0, 0.75], "attention-in-multiplier": 0.5,
          "attention-out-multiplier": 1.5, {3}, {4}}},
        {{"mixer": "state-space", {1}, "feed-forward": "none", {4}}}],
      "final-norm": {{{4}}}}}}})",
      kHybridTokens, space, attention, mlp, norm);
  return models::model_from_config_json(Json::parse(config));
}

std::vector<Layout> hybrid_layouts() {
  using parallel::ScheduleKind;
  using Recompute = models::RecomputeOptions;
  return {{.tp = 2, .micro_batch = 2},
          {.tp = 4, .sequence = true, .micro_batch = 4},
          {.dp = 2,
           .ep = 2,
           .pipeline = {.kind = ScheduleKind::interleaved, .stages = 2, .chunks = 2},
           .sharding = parallel::Sharding::optimizer,
           .overlap = true,
           .micro_batch = 1},
          {.pipeline = {.kind = ScheduleKind::zero_bubble_v, .stages = 2, .chunks = 2},
           .micro_batch = 1},
          {.tp = 2,
           .dp = 2,
           .ep = 2,
           .sequence = true,
           .pipeline = {.kind = ScheduleKind::zero_bubble_h1, .stages = 2},
           .recompute = {.granularity = Recompute::Granularity::full,
                         .method = Recompute::Method::block,
                         .layers = 1},
           .micro_batch = 1},
          {.dp = 4, .sharding = parallel::Sharding::parameters, .micro_batch = 1},
          {.pipeline = {.stages = 4}, .offload = {}, .micro_batch = 1}};
}

class HybridLayouts : public ::testing::TestWithParam<bool> {
 protected:
  // prefers: on preferences (DPO), whose pairs are documents of a row.
  Experiment experiment(models::Model model, bool packed, bool prefers = false) const {
    return {std::move(model),
            DeviceKind::reference,
            DType::f64,
            DType::f64,
            settings::LossScope::token,
            kHybridSequences,
            kHybridTokens,
            environment_,
            prefers ? std::make_shared<const ComparedPreferences>() : nullptr,
            packed,
            prefers};
  }
  static void expect_same(const Experiment& experiment, const std::vector<Layout>& layouts) {
    const std::vector<optim::Method> methods = {optim::Method::sgd};
    const Outcome one = experiment.run({.micro_batch = 4}, methods);
    for (const Layout& layout : layouts) {
      Report report(layout.str());
      compare_outcomes(layout.str(), experiment.run(layout, methods), one, tolerance::kLayoutFp64,
                       report);
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_GT(report.compared(), 40) << report.text();
    }
  }

 private:
  Environment environment_;
};

TEST_P(HybridLayouts, GiveWhatOneRankGives) {
  expect_same(experiment(hybrid_model(), GetParam()), hybrid_layouts());
}

// Adapters of state spaces, attention, MLPs and experts; packed, on preferences.
TEST_P(HybridLayouts, OfAdaptersGiveWhatOneRankGives) {
  const models::LoraConfig config{
      .rank = 3, .alpha = 5, .init = models::LoraInit::random, .all_linear = true};
  const models::Model adapted =
      hybrid_model()->with({.adapter = std::make_shared<const models::LoraConfig>(config)});
  expect_same(experiment(adapted, GetParam(), GetParam()),
              {{.tp = 2, .sequence = true, .micro_batch = 2},
               {.cp = 2, .micro_batch = 2},
               {.pipeline = {.stages = 2}, .micro_batch = 2}});
}

INSTANTIATE_TEST_SUITE_P(Sequences, HybridLayouts, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Packed" : "Whole"; });

}  // namespace
}  // namespace megatron::selftest
