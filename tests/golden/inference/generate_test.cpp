// Continuations: bits of log-probabilities, independence of the batch, and conditions that end
// them.
#include "inference/generate.h"

#include <cmath>
#include <map>

#include "base/error.h"
#include "golden/inference/losses.h"

namespace megatron::testing {
namespace {

using inference::EngineOptions;
using inference::Finish;
using inference::Generation;
using inference::Request;

std::vector<Request> requests(int64_t count, int64_t longest, int64_t vocabulary) {
  std::vector<Request> all;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = 1 + i * 37 % longest;
    all.push_back({.number = static_cast<uint64_t>(i),
                   .prompt = random_tokens(length, vocabulary, 50 + static_cast<uint64_t>(i)),
                   .max_tokens = 3 + i % 4,
                   .sampling = {.temperature = 0.9,
                                .top_k = 20,
                                .presence_penalty = i % 2 * 1.5,
                                .frequency_penalty = i % 3 * 0.5,
                                .logit_bias = {{static_cast<int32_t>(i), 2}},
                                .min_tokens = i % 4,
                                .seed = 3},
                   .logprobs = i % 3});
  }
  return all;
}

class Models : public ::testing::TestWithParam<std::tuple<bool, DType>> {
 protected:
  Models()
      : m_(std::get<0>(GetParam()) ? llama_shape(2, 32, 4, 2, 97, 64)
                                   : gpt2_shape(2, 32, 4, 97, 64),
           std::get<1>(GetParam())) {}
  std::vector<Generation> run(const std::vector<Request>& all, EngineOptions options = {}) {
    return inference::generate(m_.model, m_.runtime, all, options);
  }
  RandomModel m_;
};

TEST_P(Models, LogProbabilitiesAreMinusTheLossesOfEvaluation) {
  const auto all = requests(7, 50, 97);
  const auto results = run(all, {.max_requests = 3, .max_tokens = 16});
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(results[i].tokens.size(), static_cast<size_t>(all[i].max_tokens));
    expect_losses_of_evaluation(m_, all[i], results[i]);
  }
}

TEST_P(Models, AResultDependsOnNoBatch) {
  const auto all = requests(9, 50, 97);
  std::map<uint64_t, std::vector<double>> expected;
  for (const Request& request : all)
    expected[request.number] =
        numbers_of(run({request}, {.max_requests = 1, .max_tokens = 512})[0]);
  for (const int64_t batch : {1, 2, 5, 9}) {
    for (const int64_t prefill : {1, 7, 64, 512}) {
      std::vector<Request> order = all;
      std::rotate(order.begin(), order.begin() + batch % 7, order.end());
      const auto results = run(order, {.max_requests = batch, .max_tokens = prefill});
      for (size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(numbers_of(results[i]), expected[order[i].number])
            << "request " << order[i].number << ", batch " << batch << ", prefill " << prefill;
      }
    }
  }
}

TEST_P(Models, InTwoPartsAsInOne) {
  Request request{.prompt = {1, 2, 3}, .max_tokens = 9, .sampling = {.seed = 5}};
  const Tokens whole = tokens_of(run({request})[0]);
  request.max_tokens = 4;
  Tokens parts = tokens_of(run({request})[0]);
  request.prompt.insert(request.prompt.end(), parts.begin(), parts.end());
  request.max_tokens = 5;
  const Tokens rest = tokens_of(run({request})[0]);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

INSTANTIATE_TEST_SUITE_P(All, Models,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(DType::f32, DType::bf16)));

class Generate : public ::testing::Test {
 protected:
  Generation one(const Request& request, EngineOptions options = {}) {
    return inference::generate(m_.model, m_.runtime, std::span(&request, 1), options)[0];
  }
  RandomModel m_{gpt2_shape(2, 32, 4, 97, 16), DType::f32};
};

// The last position yields one more token, after which the text must end.
TEST_F(Generate, EndsAtTheModelsPositions) {
  const Generation g = one({.prompt = {1, 2, 3}, .max_tokens = 40});
  EXPECT_EQ(g.tokens.size(), 14u);
  EXPECT_EQ(g.finish, Finish::positions);
  EXPECT_EQ(one({.prompt = Tokens(16, 4), .max_tokens = 1}).finish, Finish::length);
  EXPECT_EQ(one({.prompt = Tokens(16, 4), .max_tokens = 2}).tokens.size(), 1u);
}

TEST_F(Generate, EndsAfterAnEndToken) {
  const Tokens all = tokens_of(one({.prompt = {1, 2, 3}, .max_tokens = 9}));
  const Generation g = one({.prompt = {1, 2, 3}, .max_tokens = 9, .end_tokens = {96, all[4]}});
  EXPECT_EQ(g.finish, Finish::end_token);
  EXPECT_EQ(g.tokens.back().draw.token, all[4]);
  EXPECT_LE(g.tokens.size(), 5u);
}

TEST_F(Generate, EndsWhereTheCallerSaysSo) {
  const Request request{.prompt = {1, 2, 3}, .max_tokens = 9};
  std::vector<int32_t> seen;
  const auto results = inference::generate(m_.model, m_.runtime, std::span(&request, 1), {},
                                           [&](size_t, const inference::GeneratedToken& t) {
                                             seen.push_back(t.draw.token);
                                             return seen.size() < 4;
                                           });
  EXPECT_EQ(results[0].tokens.size(), 4u);
  EXPECT_EQ(results[0].finish, Finish::stop);
  EXPECT_EQ(seen, tokens_of(results[0]));
}

TEST_F(Generate, OnlyLogProbabilitiesOfAPrompt) {
  const Request request{.prompt = {1, 2, 3, 4}, .max_tokens = 0, .logprobs = 0};
  const Generation g = one(request);
  EXPECT_TRUE(g.tokens.empty());
  expect_losses_of_evaluation(m_, request, g);
  // Runs together with a request that continues.
  const std::vector<Request> two = {request, {.prompt = {5, 6}, .max_tokens = 3}};
  const auto results = inference::generate(m_.model, m_.runtime, two, {});
  EXPECT_TRUE(results[0].tokens.empty());
  EXPECT_EQ(results[0].prompt_log_probabilities, g.prompt_log_probabilities);
  EXPECT_EQ(results[1].tokens.size(), 3u);
}

TEST_F(Generate, DrawsBelowTheVocabulary) {
  const Generation g =
      one({.prompt = {90}, .max_tokens = 16, .sampling = {.temperature = 50}, .logprobs = 3},
          {.vocabulary = 5});
  ASSERT_EQ(g.tokens.size(), 16u);
  for (const auto& token : g.tokens) {
    EXPECT_LT(token.draw.token, 5);
    for (const auto& other : token.alternatives) EXPECT_LT(other.token, 5);
  }
}

// Every token except one ends the text.
TEST_F(Generate, GoesOnToTheMinimum) {
  Request request{.prompt = {1, 2, 3}, .max_tokens = 10, .sampling = {.min_tokens = 4}};
  for (int32_t id = 0; id < 97; ++id)
    if (id != 5) request.end_tokens.push_back(id);
  request.sampling.logit_bias = {{5, -20}};
  const Generation g = one(request);
  EXPECT_EQ(g.finish, Finish::end_token);
  const Tokens tokens = tokens_of(g);
  ASSERT_EQ(tokens.size(), 5u);
  EXPECT_EQ(std::ranges::count(tokens, 5), 4);
}

// Only the generated text counts, not the prompt.
TEST_F(Generate, PenaltiesCountTheGeneratedText) {
  Request request{.prompt = {7, 8, 7}, .max_tokens = 13, .sampling = {.temperature = 0}};
  const Tokens plain = tokens_of(one(request));
  request.prompt.assign(3, plain[0]);
  request.sampling = {.temperature = 0, .presence_penalty = 1, .frequency_penalty = 0.5};
  request.logprobs = 97;
  const Generation g = one(request);
  std::vector<double> lowered(97);
  bool matters = false;
  for (const auto& token : g.tokens) {
    const auto score = [&](const inference::Draw& d) {
      return d.log_probability - lowered[static_cast<size_t>(d.token)];
    };
    const auto best = std::ranges::max_element(token.alternatives, {}, score);
    EXPECT_EQ(token.draw.token, best->token);
    matters |= best != token.alternatives.begin();
    double& of_this = lowered[static_cast<size_t>(token.draw.token)];
    of_this += of_this == 0 ? 1.5 : 0.5;
  }
  EXPECT_TRUE(matters);
}

TEST_F(Generate, CountsWhatItDoes) {
  inference::Statistics s;
  const std::vector<Request> all = {{.prompt = {1, 2, 3}, .max_tokens = 4},
                                    {.prompt = {1, 2, 3, 4, 5}, .max_tokens = 2}};
  inference::generate(m_.model, m_.runtime, all, {}, {}, &s);
  EXPECT_EQ(s.prompt_tokens, 8);
  EXPECT_EQ(s.generated_tokens, 6);
  EXPECT_EQ(s.decoded_tokens, 4);
  EXPECT_GT(s.prefill_seconds, 0);
  EXPECT_GT(s.decode_seconds, 0);
}

TEST_F(Generate, RefusesWhatTheModelCannotTake) {
  const auto refused = [&](const Request& request, const std::string& part) {
    try {
      one(request);
      ADD_FAILURE() << "not refused: " << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused({.prompt = {}}, "is empty");
  refused({.prompt = {97}}, "token 97");
  refused({.prompt = {-1}}, "token -1");
  refused({.prompt = Tokens(17, 1)}, "17 tokens, but the model has only 16 positions");
  refused({.prompt = {1}, .max_tokens = -1}, "--max-tokens is -1");
  refused({.prompt = {1}, .sampling = {.top_p = 0}}, "--top-p");
  refused({.prompt = {1}, .max_tokens = 2, .sampling = {.min_tokens = 3}},
          "--min-tokens is 3, but --max-tokens is only 2");
  refused({.prompt = {1}, .sampling = {.logit_bias = {{97, 1}}}}, "token 97");
  refused({.prompt = {1}, .sampling = {.logit_bias = {{-1, 1}}}}, "token -1");
  refused({.prompt = {1}, .logprobs = 98}, "--logprobs is 98");
  EXPECT_THROW(one({.prompt = {1}}, {.max_requests = 0}), Error);
  EXPECT_THROW(one({.prompt = {1}}, {.max_tokens = 0}), Error);
  EXPECT_TRUE(inference::generate(m_.model, m_.runtime, {}, {}).empty());
}

TEST_F(Generate, SaysWhenTheModelIsBroken) {
  Tensor weight = m_.model.parameters()[0]->parameter.value;
  copy_from(weight, std::span<const float>(
                        std::vector<float>(static_cast<size_t>(weight.elements()), std::nanf(""))));
  EXPECT_THROW(one({.prompt = {1}}), Error);
}

}  // namespace
}  // namespace megatron::testing
