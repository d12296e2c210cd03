// An encoder divided among ranks gives the scores, predictions and embeddings of one rank.
#include "base/tolerances.h"
#include "dist/inference/divided_engine.h"
#include "inference/scores.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

models::Model encoder(bool scores) {
  Json config = family_config(scores ? "bert_classify" : "bert");
  config.set("initializer_range", 0.3);
  config.set("num_hidden_layers", 4);
  return models::model_from_config_json(config);
}

// Every number that is given for some texts.
std::vector<double> numbers_by(Engine& engine, const models::Model& model) {
  std::map<RequestId, std::vector<double>> numbers;
  for (uint64_t n = 0; n < 8; ++n) {
    inference::Request request{.number = n,
                               .prompt = random_tokens(3 + static_cast<int64_t>(n * 7 % 30), 90, n),
                               .max_tokens = 0};
    if (n % 2 == 0) request.embedding = inference::EmbeddingForm{};
    else if (model->score_labels() > 0) request.scores = true;
    else request.masked = {{1, 8}, {2, static_cast<int32_t>(n)}};
    engine.submit(request);
  }
  while (!engine.idle())
    for (const RequestUpdate& update : engine.step()) {
      EXPECT_EQ(update.finish, inference::Finish::scored) << update.error;
      std::vector<double>& all = numbers[update.id];
      all.assign(update.scores.begin(), update.scores.end());
      all.insert(all.end(), update.embedding.begin(), update.embedding.end());
      all.insert(all.end(), update.prompt_log_probabilities.begin(),
                 update.prompt_log_probabilities.end());
      EXPECT_FALSE(all.empty());
    }
  std::vector<double> all;
  for (const auto& [id, values] : numbers) all.insert(all.end(), values.begin(), values.end());
  return all;
}

class DividedEncoder : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(DividedEncoder, GivesTheNumbersOfOneRank) {
  const auto [scores, led] = GetParam();
  const models::Model model = encoder(scores);
  RandomModel m(model, DType::f32);
  const EngineOptions options{.max_requests = 5, .max_tokens = 60};
  Engine whole(m.model, m.runtime, options);
  const std::vector<double> expected = numbers_by(whole, model);
  for (const Division& d :
       {Division{.stages = 2, .led = led}, {.tensor = 2, .led = led}, {.tensor = 2, .stages = 2}}) {
    SCOPED_TRACE(fmt::format("{} x {}", d.tensor, d.stages));
    on_parts(m, d, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
      Engine engine(stage, runtime, options, ranks);
      const std::vector<double> found = numbers_by(engine, model);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        if (d.tensor == 1) EXPECT_EQ(found[i], expected[i]) << i;
        else EXPECT_NEAR(found[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, DividedEncoder,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace megatron::testing
