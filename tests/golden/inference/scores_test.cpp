// Log-probabilities of a prompt from a given token on, with the most likely alternatives.
#include <algorithm>

#include "base/error.h"
#include "golden/inference/losses.h"
#include "inference/engine.h"
#include "text.h"

namespace megatron::testing {
namespace {

using inference::Draw;
using inference::Engine;
using inference::Request;

constexpr int64_t kScoredVocabulary = 97, kScoredPositions = 256;

struct Scores {
  std::vector<double> log_probabilities;
  std::vector<inference::PromptAlternatives> alternatives;
};

class PromptScores : public ::testing::Test {
 protected:
  Scores run(Engine& engine, const Request& request) {
    engine.submit(request);
    Scores scores;
    while (!engine.idle()) {
      for (const inference::RequestUpdate& update : engine.step()) {
        std::ranges::copy(update.prompt_log_probabilities,
                          std::back_inserter(scores.log_probabilities));
        std::ranges::copy(update.prompt_alternatives, std::back_inserter(scores.alternatives));
      }
    }
    return scores;
  }
  Engine engine(int64_t most_tokens = 512) {
    return Engine(m_.model, m_.runtime, {.max_requests = 2, .max_tokens = most_tokens});
  }

  RandomModel m_{llama_shape(2, 32, 4, 2, kScoredVocabulary, kScoredPositions), DType::f32};
};

TEST_F(PromptScores, FromATokenOnAreTheLastOfAll) {
  const Tokens prompt = random_tokens(150, kScoredVocabulary, 3);
  Engine all = engine();
  const Scores whole = run(all, {.prompt = prompt, .max_tokens = 0, .logprobs = 0});
  ASSERT_EQ(whole.log_probabilities.size(), 149u);
  EXPECT_TRUE(whole.alternatives.empty());
  for (const int64_t first : {1, 2, 64, 65, 66, 149, 150}) {
    for (const int64_t pass : {7, 512}) {
      Engine e = engine(pass);
      const std::vector<double> expected(whole.log_probabilities.begin() + first - 1,
                                         whole.log_probabilities.end());
      const Request request{
          .prompt = prompt, .max_tokens = 0, .logprobs = 0, .first_scored = first};
      EXPECT_EQ(run(e, request).log_probabilities, expected) << first;
      EXPECT_EQ(run(e, request).log_probabilities, expected) << first << ", cached";
    }
  }
}

// The second request reads only its last pages.
TEST_F(PromptScores, ReadNoneOfTheCachedTokensBefore) {
  Engine e = engine();
  Request request{.prompt = random_tokens(140, kScoredVocabulary, 3),
                  .max_tokens = 0,
                  .logprobs = 0,
                  .first_scored = 139};
  run(e, request);
  EXPECT_EQ(e.statistics().prompt_tokens, 140);
  request.prompt.back() ^= 1;
  run(e, request);
  EXPECT_EQ(e.statistics().prompt_tokens, 140 + 140 - 128);
  EXPECT_EQ(e.statistics().cached_tokens, 128);
  request.first_scored = 1;
  run(e, request);
  EXPECT_EQ(e.statistics().cached_tokens, 128);
}

TEST_F(PromptScores, AlternativesAreTheLargestLogits) {
  const Tokens prompt = random_tokens(100, kScoredVocabulary, 9);
  const std::vector<float> logits = whole_logits(m_, prompt);
  for (const int64_t pass : {9, 512}) {
    Engine e = engine(pass);
    const Scores scores = run(e, {.prompt = prompt,
                                  .max_tokens = 1,
                                  .logprobs = 3,
                                  .first_scored = 5,
                                  .prompt_alternatives = 3});
    ASSERT_EQ(scores.log_probabilities.size(), 95u);
    ASSERT_EQ(scores.alternatives.size(), 95u);
    for (size_t i = 0; i < 95; ++i) {
      const std::span<const float> row(&logits[(i + 4) * kScoredVocabulary], kScoredVocabulary);
      const std::vector<int32_t> expected = inference::most_likely(row, 3);
      ASSERT_EQ(scores.alternatives[i].likely.size(), 3u);
      const std::vector<int32_t> ranked = inference::most_likely(row, kScoredVocabulary);
      EXPECT_EQ(ranked[static_cast<size_t>(scores.alternatives[i].rank - 1)], prompt[i + 5]);
      for (size_t k = 0; k < 3; ++k) {
        const Draw& draw = scores.alternatives[i].likely[k];
        EXPECT_EQ(draw.token, expected[k]) << i;
        if (draw.token == prompt[i + 5]) {
          EXPECT_EQ(draw.log_probability, scores.log_probabilities[i]);
        }
      }
      EXPECT_GE(scores.alternatives[i].likely[0].log_probability, scores.log_probabilities[i]);
    }
  }
}

TEST_F(PromptScores, RefusesATokenThatIsNotThere) {
  Engine e = engine();
  for (const int64_t first : {0, 4})
    expect_contains(
        error_of([&] { e.submit({.prompt = {1, 2, 3}, .logprobs = 0, .first_scored = first}); }),
        {"from token " + std::to_string(first), "prompt has 3"});
}

}  // namespace
}  // namespace megatron::testing
