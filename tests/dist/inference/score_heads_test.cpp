// Scores of texts by models divided among ranks, compared with one rank.
#include "base/tolerances.h"
#include "dist/inference/divided_engine.h"
#include "inference/scores.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

using TextScores = std::vector<float>;

models::Model divided_scorer(int64_t labels) {
  Json config = qwen2_classifier();
  config.set("id2label", Json());
  config.set("num_labels", labels);
  config.set("initializer_range", 0.3);
  return models::model_from_config_json(config);
}

std::vector<TextScores> scores_by(Engine& engine, const models::Model& model) {
  std::map<RequestId, TextScores> scores;
  for (uint64_t n = 0; n < 12; ++n) {
    const Tokens text = random_tokens(1 + static_cast<int64_t>(n * 37 % 100), 96, n % 3);
    engine.submit(inference::score_request(model->facts(), text, n));
    for (const RequestUpdate& update : engine.step())
      if (update.finish) scores[update.id] = update.scores;
  }
  while (!engine.idle())
    for (const RequestUpdate& update : engine.step())
      if (update.finish) scores[update.id] = update.scores;
  std::vector<TextScores> all;
  for (auto& [id, of_text] : scores) all.push_back(std::move(of_text));
  return all;
}

// Tensor-parallel ranks may have more ranks than the head has rows.
class DividedScores : public ::testing::TestWithParam<std::tuple<int64_t, bool>> {};

TEST_P(DividedScores, AreThoseOfOneRank) {
  const auto [labels, led] = GetParam();
  const models::Model model = divided_scorer(labels);
  RandomModel m(model, DType::f32);
  const EngineOptions options{.max_requests = 5, .max_tokens = 40};
  Engine whole(m.model, m.runtime, options);
  const std::vector<TextScores> expected = scores_by(whole, model);
  ASSERT_EQ(expected.size(), 12u);
  for (const Division& d : {Division{.stages = 2, .led = led},
                            {.tensor = 2, .led = led},
                            {.tensor = 2, .stages = 2, .led = led}}) {
    SCOPED_TRACE(fmt::format("{} x {}", d.tensor, d.stages));
    on_parts(m, d, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
      Engine engine(stage, runtime, options, ranks);
      const std::vector<TextScores> found = scores_by(engine, model);
      if (d.tensor == 1) {
        EXPECT_EQ(found, expected);
        return;
      }
      ASSERT_EQ(found.size(), expected.size());
      double difference = 0, reference = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].size(), static_cast<size_t>(labels));
        for (size_t k = 0; k < found[i].size(); ++k) {
          difference += std::pow(found[i][k] - expected[i][k], 2);
          reference += std::pow(expected[i][k], 2);
        }
      }
      const int64_t count = std::ssize(found) * labels;
      const double rms = std::sqrt(reference / static_cast<double>(count));
      EXPECT_LE(tolerance::tensor_metric(std::sqrt(difference), std::sqrt(reference), rms, count),
                tolerance::kLayoutFp32);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, DividedScores,
                         ::testing::Combine(::testing::Values(1, 3), ::testing::Bool()));

}  // namespace
}  // namespace megatron::testing
