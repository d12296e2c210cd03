// TextScores of texts by models with a score head.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "golden/inference/support.h"
#include "inference/engine.h"
#include "inference/scores.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

using inference::Engine;
using inference::Finish;
using inference::Request;
using models::ScoreActivation;
using TextScores = std::vector<float>;

constexpr int64_t kTextVocabulary = 96;

models::Model scorer(int64_t labels) {
  Json config = qwen2_classifier();
  config.set("id2label", Json());
  config.set("num_labels", labels);
  config.set("initializer_range", 0.3);
  config.set("max_position_embeddings", 400);
  return models::model_from_config_json(config);
}

// Texts of many lengths that share prefixes; none ends with padding.
std::vector<Tokens> scored_texts(uint64_t count) {
  std::vector<Tokens> texts;
  for (uint64_t n = 0; n < count; ++n) {
    Tokens text = random_tokens(static_cast<int64_t>(n * 29 % 200), kTextVocabulary, n % 2);
    const Tokens own = random_tokens(static_cast<int64_t>(n * 7 % 90), kTextVocabulary, 9 + n);
    text.insert(text.end(), own.begin(), own.end());
    text.push_back(1 + static_cast<int32_t>(n % 90));
    texts.push_back(text);
  }
  return texts;
}

std::vector<Request> score_requests(const RandomModel& m, const std::vector<Tokens>& texts) {
  std::vector<Request> requests;
  for (const Tokens& text : texts)
    requests.push_back(inference::score_request(m.model.model()->facts(), text, requests.size()));
  return requests;
}

std::vector<TextScores> run(Engine& engine, const std::vector<Request>& requests) {
  std::map<inference::RequestId, size_t> number;
  for (size_t i = 0; i < requests.size(); ++i) number[engine.submit(requests[i])] = i;
  std::vector<TextScores> scores(requests.size());
  while (!engine.idle()) {
    for (const inference::RequestUpdate& update : engine.step()) {
      EXPECT_EQ(update.finish, Finish::scored);
      EXPECT_TRUE(update.tokens.empty());
      scores[number.at(update.id)] = update.scores;
    }
  }
  return scores;
}

// TextScores after the last token, by the forward pass of training over two copies of the text.
TextScores scores_of_training(RandomModel& m, const Tokens& text) {
  const nn::Batch batch = whole_batch(m, {text, text});
  Tape tape(m.runtime, Tape::Mode::record);
  const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::train);
  const std::vector<float> all = to_floats(m.model.logits(tape, out, batch).value);
  return {all.end() - m.model.model()->score_labels(), all.end()};
}

class ScoreHeads : public ::testing::TestWithParam<int64_t> {};

TEST_P(ScoreHeads, GiveTheBitsOfTrainingWhateverElseRuns) {
  RandomModel m(scorer(GetParam()), DType::f32);
  const std::vector<Tokens> texts = scored_texts(20);
  std::vector<TextScores> expected;
  for (const Tokens& text : texts) expected.push_back(scores_of_training(m, text));
  const std::vector<Request> requests = score_requests(m, texts);
  for (const auto& [running, pass] : {std::pair{1, 512}, {20, 7}, {6, 64}, {20, 4096}}) {
    Engine engine(m.model, m.runtime, {.max_requests = running, .max_tokens = pass});
    EXPECT_EQ(run(engine, requests), expected) << running << ", " << pass;
    EXPECT_EQ(run(engine, requests), expected) << "cached";
    EXPECT_GT(engine.statistics().cached_tokens, 0);
    EXPECT_EQ(engine.cache_use().used, 0);
  }
}

TEST_P(ScoreHeads, GiveTheBitsOfEachAloneWithASmallCache) {
  RandomModel m(scorer(GetParam()), DType::bf16);
  const std::vector<Request> requests = score_requests(m, scored_texts(20));
  std::vector<TextScores> alone;
  for (const Request& request : requests) {
    Engine engine(m.model, m.runtime, {});
    alone.push_back(run(engine, {request})[0]);
  }
  const int64_t bytes = Engine(m.model, m.runtime, {.max_requests = 2, .block_size = 32})
                            .cache_use()
                            .bytes;  // of two of the longest texts
  Engine engine(m.model, m.runtime,
                {.max_requests = 12, .max_tokens = 40, .block_size = 32, .cache_bytes = bytes});
  EXPECT_EQ(run(engine, requests), alone);
}

INSTANTIATE_TEST_SUITE_P(Labels, ScoreHeads, ::testing::Values(1, 3));

TEST(ScoreRequests, EndAtTheLastTokenThatIsNotPadding) {
  models::ModelFacts facts{.score_labels = 1, .score_padding = 0};
  const auto prompt = [&](const Tokens& tokens) {
    return inference::score_request(facts, tokens).prompt;
  };
  EXPECT_EQ(prompt({5, 0, 6, 0, 0}), (Tokens{5, 0, 6}));
  EXPECT_EQ(prompt({0, 0}), Tokens{0});
  facts.score_padding = -1;
  EXPECT_EQ(prompt({5, 0}), (Tokens{5, 0}));
}

TEST(ScoreRequests, FitTheModel) {
  RandomModel scores(scorer(3), DType::f32);
  RandomModel text(gpt2_shape(1, 16, 2, 96, 64), DType::f32);
  Engine of_scores(scores.model, scores.runtime, {}), of_text(text.model, text.runtime, {});
  const auto submitted = [](Engine& engine, Request request) {
    request.prompt = {1, 2, 3};
    return error_of([&] { engine.submit(request); });
  };
  expect_contains(submitted(of_text, {.max_tokens = 0, .scores = true}),
                  {"asks for scores", "language-model head", "ForSequenceClassification"});
  expect_contains(submitted(of_scores, {}), {"asks for a text", "a head of 3 scores"});
  expect_contains(submitted(of_scores, {.max_tokens = 1, .scores = true}), {"exclude"});
  expect_contains(submitted(of_scores, {.max_tokens = 0, .logprobs = 0, .scores = true}),
                  {"log-probabilities"});
  EXPECT_EQ(submitted(of_scores, {.max_tokens = 0, .scores = true}), "");
}

TEST(ScoreRequests, FailAloneIfTheirScoresAreNotFinite) {
  RandomModel m(scorer(3), DType::f32);
  for (parallel::ParameterSpec* placed : m.model.parameters()) {
    if (placed->parameter.name != "embedding.weight") continue;
    std::vector<double> values = to_doubles(placed->parameter.value);
    values[0] = std::numeric_limits<double>::quiet_NaN();  // of token 0
    copy_from(placed->parameter.value, std::span<const double>(values));
  }
  Engine engine(m.model, m.runtime, {});
  const auto good = engine.submit(score_requests(m, {{4, 5}})[0]);
  engine.submit(score_requests(m, {{4, 0, 5}})[0]);
  for (const inference::RequestUpdate& update : engine.step()) {
    EXPECT_EQ(update.finish, update.id == good ? Finish::scored : Finish::failed);
    EXPECT_EQ(has(update.error, "NaN or infinite"), update.id != good);
  }
  EXPECT_TRUE(engine.idle());
}

TEST(Activations, AreThoseOfTheirFormulas) {
  using inference::activated;
  const std::vector<float> scores = {1000, 1001, -1000};
  EXPECT_EQ(activated(ScoreActivation::none, scores), (std::vector<double>{1000, 1001, -1000}));
  const std::vector<double> softmax = activated(ScoreActivation::softmax, scores);
  EXPECT_NEAR(softmax[0], 1 / (1 + std::exp(1)), 1e-15);
  EXPECT_NEAR(softmax[0] + softmax[1], 1, 1e-15);
  EXPECT_EQ(softmax[2], 0);
  const std::vector<double> sigmoid = activated(ScoreActivation::sigmoid, scores);
  EXPECT_EQ(sigmoid, (std::vector<double>{1, 1, 0}));
  const std::vector<float> two = {2};
  EXPECT_NEAR(activated(ScoreActivation::sigmoid, two)[0], std::exp(2) / (std::exp(2) + 1), 1e-15);
}

}  // namespace
}  // namespace megatron::testing
