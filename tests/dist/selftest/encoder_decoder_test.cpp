// Encoder-decoders have the results of one rank in other layouts: pipelines whose border between
// encoder and decoder lies inside a stage, or between two, and whose other borders lie inside the
// encoder and inside the decoder.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {
namespace {

constexpr int64_t kTargetTokens = 16, kSequences = 12, kAllLayers = 6;

// encoder: how many of the layers.
models::Model encoder_decoder(int64_t encoder) {
  const std::string heads = R"("num-attention-heads": 4, "num-query-groups": 4, "kv-channels": 8,
    "qkv-bias": true, "attention-output-bias": true)";
  const std::string rest = heads + R"(, "ffn-hidden-size": 48, "activation": "gelu_tanh",
    "gated": false, "mlp-bias": true, "normalization": "LayerNorm", "norm-epsilon": 0.001953125)";
  const std::string config = fmt::format(
      R"({{"model_type": "megatron", "hidden_dropout": 0.1, "attention_dropout": 0.1,
    "initializer_range": 0.2, "model": {{
      "num-layers": {}, "vocab-size": 61, "hidden-size": 32, "max-position-embeddings": 32,
      "learned-positions": true, "untied": false, "encoder-layers": {}, "layers": [
        {{"count": {}, "two-sided": true, {}}},
        {{"count": {}, "cross-attention": {{{}}}, {}}}],
      "final-norm": {{"normalization": "LayerNorm", "norm-epsilon": 0.001953125}}}}}})",
      kAllLayers, encoder, encoder, rest, kAllLayers - encoder, heads, rest);
  return models::model_from_config_json(Json::parse(config));
}

std::vector<Layout> encoder_decoder_layouts() {
  using parallel::ContextExchange;
  using parallel::ScheduleKind;
  using Recompute = models::RecomputeOptions;
  const parallel::PipelineShape three{.stages = 3};
  return {{.pipeline = three, .micro_batch = 1},
          {.pipeline = {.kind = ScheduleKind::interleaved, .stages = 3, .chunks = 2},
           .overlap = true,
           .micro_batch = 1},
          {.pipeline = {.kind = ScheduleKind::zero_bubble_v, .stages = 3, .chunks = 2},
           .micro_batch = 2},
          {.tp = 2,
           .pipeline = {.kind = ScheduleKind::zero_bubble_h1, .stages = 3},
           .recompute = {.granularity = Recompute::Granularity::full,
                         .method = Recompute::Method::uniform,
                         .layers = 2,
                         .distribute = true},
           .micro_batch = 2},
          {.tp = 2,
           .dp = 2,
           .sequence = true,
           .pipeline = three,
           .sharding = parallel::Sharding::parameters,
           .recompute = {.granularity = Recompute::Granularity::full,
                         .method = Recompute::Method::block,
                         .layers = 1},
           .micro_batch = 2},
          {.tp = 2,
           .cp = 2,
           .sequence = true,
           .pipeline = {.stages = 2},
           .recompute = {.granularity = Recompute::Granularity::selective,
                         .modules = {"core_attn", "mlp"}},
           .micro_batch = 4},
          {.cp = 2, .exchange = ContextExchange::a2a, .offload = {.layers = 2}, .micro_batch = 2},
          {.cp = 4, .dp = 2, .sharding = parallel::Sharding::gradients, .micro_batch = 2}};
}

class EncoderDecoderLayouts : public ::testing::TestWithParam<int64_t> {
 protected:
  // packed: several documents in each sequence, each with its own text of the encoder.
  Experiment experiment(bool packed, DeviceKind device, DType type) const {
    return {encoder_decoder(GetParam()),
            device,
            type,
            type,
            settings::LossScope::token,
            kSequences,
            kTargetTokens,
            environment_,
            nullptr,
            packed};
  }

 private:
  Environment environment_;
};

TEST_P(EncoderDecoderLayouts, GiveTheResultsOfOneRank) {
  const std::vector<optim::Method> sgd = {optim::Method::sgd};
  const bool packed = GetParam() != kAllLayers / 2;
  const Experiment of_all = experiment(packed, DeviceKind::reference, DType::f64);
  const Outcome expected = of_all.run({.micro_batch = kSequences}, sgd);
  EXPECT_GT(expected.gradients.size(), 90u);
  for (const Layout& layout : encoder_decoder_layouts()) {
    const std::string name = fmt::format("{} layers of an encoder{}, {}", GetParam(),
                                         packed ? ", packed" : "", layout.str());
    Report report(name);
    compare_outcomes(name, of_all.run(layout, sgd), expected, tolerance::kLayoutFp64, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

// What a pipeline sends has no other bits than what a single stage passes on.
TEST_P(EncoderDecoderLayouts, OfAPipelineHaveTheBitsOfOneStage) {
  const std::vector<optim::Method> sgd = {optim::Method::sgd};
  const Experiment single = experiment(true, DeviceKind::cpu, DType::f32);
  const Outcome expected = single.run({.micro_batch = 2}, sgd);
  for (const auto kind : {parallel::ScheduleKind::one_f_one_b, parallel::ScheduleKind::interleaved,
                          parallel::ScheduleKind::zero_bubble_h1}) {
    const int chunks = kind == parallel::ScheduleKind::interleaved ? 2 : 1;
    const Layout layout{.pipeline = {.kind = kind, .stages = 3, .chunks = chunks},
                        .micro_batch = 2};
    Report report(layout.str());
    compare_outcomes(layout.str(), single.run(layout, sgd), expected, 0, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Borders, EncoderDecoderLayouts, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace megatron::selftest
