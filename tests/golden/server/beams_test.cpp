// Beam search through the server's endpoints.
#include <gtest/gtest.h>

#include "golden/server/support.h"
#include "inference/generate.h"

namespace megatron::testing {
namespace {

class ServedBeams : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new ServedModel; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static ServedModel* served_;
};
ServedModel* ServedBeams::served_ = nullptr;

// What the engine gives for the same prompt.
std::vector<inference::BeamResult> searched(const std::string& prompt,
                                            const inference::BeamOptions& options) {
  RandomModel m(gpt2_shape(1, 16, 2, 256, kServedPositions), DType::f32, 1);
  inference::Request request{.prompt = {prompt.begin(), prompt.end()},
                             .max_tokens = 12,
                             .end_tokens = {0},
                             .beams = options};
  return inference::generate(m.model, m.runtime, std::span(&request, 1), {.vocabulary = 256})[0]
      .beams;
}

std::vector<double> log_probabilities(const inference::BeamResult& beam) {
  std::vector<double> all;
  for (const auto& token : beam.tokens) all.push_back(token.draw.log_probability);
  return all;
}

TEST_F(ServedBeams, AreTheBestTextsOfTheSearch) {
  const auto beams = searched("Hello", {.beams = 4,
                                        .returned = 3,
                                        .length_penalty = 0.5,
                                        .early_stopping = inference::EarlyStopping::never});
  const Json answer = served_->get("/v1/completions",
                                   R"({"prompt": "Hello", "use_beam_search": true, "n": 3,
      "best_of": 4, "length_penalty": 0.5, "early_stopping": "never", "max_tokens": 12,
      "temperature": 0, "logprobs": 1})");
  const Json::Array& choices = answer["choices"].as_array();
  ASSERT_EQ(choices.size(), 3u);
  int64_t tokens = 0;
  for (size_t c = 0; c < 3; ++c) {
    std::vector<double> values;
    for (const Json& value : choices[c]["logprobs"]["token_logprobs"].as_array())
      values.push_back(value.as_number());
    EXPECT_EQ(values, log_probabilities(beams[c])) << c;
    EXPECT_EQ(choices[c]["index"].as_integer(), static_cast<int64_t>(c));
    EXPECT_EQ(choices[c]["logprobs"]["top_logprobs"].as_array().size(), values.size());
    tokens += std::ssize(beams[c].tokens);
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"].as_integer(), tokens);
}

TEST_F(ServedBeams, OfTwoPromptsAreThoseOfEach) {
  const std::string same = R"(, "use_beam_search": true, "n": 2, "max_tokens": 12})";
  const Json both = served_->get("/v1/completions", R"({"prompt": ["Hello", "you"])" + same);
  ASSERT_EQ(both["choices"].as_array().size(), 4u);
  for (const size_t p : {0, 1}) {
    const std::string prompt = p == 0 ? R"({"prompt": "Hello")" : R"({"prompt": "you")";
    const Json one = served_->get("/v1/completions", prompt + same);
    for (const size_t i : {0, 1})
      EXPECT_EQ(one["choices"].as_array()[i]["text"],
                both["choices"].as_array()[2 * p + i]["text"]);
  }
}

TEST_F(ServedBeams, AreStreamed) {
  const std::string same =
      R"("prompt": "Hello", "use_beam_search": true, "n": 2, "best_of": 3, "max_tokens": 12)";
  const Json whole = served_->get("/v1/completions", "{" + same + "}");
  std::vector<std::string> texts(2);
  for (const Json& event : served_->stream("/v1/completions", "{" + same + R"(, "stream": true})"))
    for (const Json& choice : event["choices"].as_array())
      texts[static_cast<size_t>(choice["index"].as_integer())] += choice["text"].as_string();
  for (const size_t i : {0, 1})
    EXPECT_EQ(texts[i], whole["choices"].as_array()[i]["text"].as_string());
}

TEST_F(ServedBeams, AnswerChats) {
  const Json answer = served_->get("/v1/chat/completions",
                                   R"({"messages": [{"role": "user", "content": "x"}],
      "use_beam_search": true, "n": 2, "best_of": 4, "max_tokens": 8, "logprobs": true})");
  ASSERT_EQ(answer["choices"].as_array().size(), 2u);
  for (const Json& choice : answer["choices"].as_array())
    EXPECT_EQ(choice["logprobs"]["content"].as_array().size(), 8u);
}

TEST_F(ServedBeams, OfMegatronsEndpointAreAllBeams) {
  const auto beams = searched("Hello", {.beams = 3, .returned = 3, .length_penalty = 2});
  const httplib::Result result = served_->client().Put(
      "/api",
      R"({"prompts": ["Hello"], "beam_width": 3, "length_penalty": 2, "tokens_to_generate": 12})",
      "application/json");
  ASSERT_TRUE(result);
  ASSERT_EQ(result->status, 200) << result->body;
  const Json answer = Json::parse(result->body);
  ASSERT_EQ(answer["text"].as_array().size(), 3u);
  EXPECT_FALSE(answer.contains("logprobs"));
  for (size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(answer["scores"].as_array()[b].as_number(), beams[b].score);
    EXPECT_TRUE(answer["text"].as_array()[b].as_string().starts_with("Hello"));
    const bool ended = beams[b].finish == inference::Finish::end_token;
    EXPECT_EQ(answer["segments"].as_array()[b].as_array().size(),
              5 + beams[b].tokens.size() - (ended ? 1 : 0));
  }
}

}  // namespace
}  // namespace megatron::testing
