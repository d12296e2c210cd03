// Encoders have the results of one rank in other layouts: with norms of sums or before each part,
// windows to both sides, pairs of texts, left-out tokens, and labels of texts by their mean.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "post_training/classification.h"
#include "post_training/masked_text.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {
namespace {

using post_training::MaskedTextObjective;

constexpr int64_t kTokens = 16, kPerStep = 8;

struct Encoder {
  std::string name;
  models::Model model;
  std::shared_ptr<const training::Objective> objective;
  bool packed = true;
};

models::Model of_flags(bool norms_of_sums) {
  models::ModelFlags flags = tiny_models()[0].flags;
  flags.encoder = true;
  flags.num_layers = 4;
  flags.num_attention_heads = 4;
  flags.max_position_embeddings = kTokens;
  flags.model_family = norms_of_sums ? "bert" : "megatron";
  flags.hidden_dropout = flags.attention_dropout = 0.1;
  return models::model_from_flags(flags, kTokens);
}

constexpr const char* kEsm = R"({
  "model_type": "esm", "architectures": ["EsmForMaskedLM"], "vocab_size": 33, "hidden_size": 16,
  "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 24,
  "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5,
  "position_embedding_type": "rotary", "token_dropout": true, "mask_token_id": 5})";

constexpr const char* kModernBert = R"({
  "model_type": "modernbert", "architectures": ["ModernBertFor$"], "vocab_size": 61,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
  "local_attention": 6, "norm_eps": 1e-5, "pad_token_id": 0, "max_position_embeddings": 64,
  "classifier_pooling": "mean", "id2label": {"0": "a", "1": "b", "2": "c"}})";

models::Model of_config(std::string config, const std::string& head = "") {
  if (const size_t at = config.find('$'); at != config.npos) config.replace(at, 1, head);
  return models::model_from_config_json(Json::parse(config));
}

std::vector<Encoder> encoders() {
  return {
      {"BERT", of_flags(true), std::make_shared<const MaskedTextObjective>(true)},
      {"Megatron-LM's BERT", of_flags(false), std::make_shared<const MaskedTextObjective>(true)},
      {"ESM-2", of_config(kEsm), std::make_shared<const MaskedTextObjective>(false)},
      {"ModernBERT, whole rows", of_config(kModernBert, "MaskedLM"), nullptr, false},
      {"ModernBERT's labels of texts", of_config(kModernBert, "SequenceClassification"),
       std::make_shared<const post_training::ClassificationObjective>()}};
}

std::vector<Layout> encoder_layouts() {
  using parallel::ContextExchange;
  const parallel::PipelineShape two{.stages = 2},
      zero_bubble{.kind = parallel::ScheduleKind::zero_bubble_v, .stages = 2, .chunks = 2};
  return {{.tp = 2, .sequence = true, .pipeline = two, .micro_batch = 2},
          {.tp = 4, .micro_batch = 4},
          {.pipeline = zero_bubble, .micro_batch = 2},
          {.cp = 2, .dp = 2, .sharding = parallel::Sharding::optimizer, .micro_batch = 2},
          {.tp = 2, .cp = 2, .sequence = true, .exchange = ContextExchange::a2a, .micro_batch = 2},
          {.cp = 2, .exchange = ContextExchange::all_gather, .micro_batch = 4},
          {.dp = 4, .sharding = parallel::Sharding::gradients, .micro_batch = 1},
          {.tp = 2,
           .dp = 2,
           .sequence = true,
           .sharding = parallel::Sharding::parameters,
           .recompute = {.granularity = models::RecomputeOptions::Granularity::full},
           .overlap = true,
           .micro_batch = 2}};
}

class EncoderLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(EncoderLayouts, GiveTheResultsOfOneRank) {
  const Encoder encoder = encoders()[GetParam()];
  const Environment environment;
  const Experiment experiment(encoder.model, DeviceKind::reference, DType::f64, DType::f64,
                              settings::LossScope::token, kPerStep, kTokens, environment,
                              encoder.objective, encoder.packed);
  const std::vector<optim::Method> sgd = {optim::Method::sgd};
  const Outcome expected = experiment.run({.micro_batch = 8}, sgd);
  EXPECT_GT(expected.gradients.size(), 25u);
  for (const Layout& layout : encoder_layouts()) {
    const std::string name = encoder.name + ", " + layout.str();
    Report report(name);
    compare_outcomes(name, experiment.run(layout, sgd), expected, tolerance::kLayoutFp64, report);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(All, EncoderLayouts, ::testing::Range<size_t>(0, 5));

}  // namespace
}  // namespace megatron::selftest
