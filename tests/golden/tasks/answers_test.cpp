// Compares a model's answers through the engine with plain forward passes over each text.
#include <algorithm>
#include <cmath>

#include "golden/inference/support.h"
#include "golden/selftest/support.h"
#include "tasks/asking.h"
#include "text.h"

namespace megatron::testing {
namespace {

using tasks::Answer;
using tasks::AskOptions;
using tasks::Question;
using tasks::TokenPair;

constexpr int64_t kTexts = 300;  // number of positions

class TaskAnswers : public ::testing::Test {
 protected:
  // Log-probability and most likely token, by a softmax in fp64 over the logits of one pass.
  double plain(const TokenPair& pair, bool& greedy) {
    const std::vector<float> logits = whole_logits(m_, pair.tokens);
    const size_t width = logits.size() / pair.tokens.size();
    double sum = 0;
    greedy = true;
    for (auto t = static_cast<size_t>(pair.context); t < pair.tokens.size(); ++t) {
      const std::span<const float> row(&logits[(t - 1) * width], width);
      double all = 0;
      for (const float logit : row) all += std::exp(static_cast<double>(logit));
      const auto label = static_cast<size_t>(pair.tokens[t]);
      sum += static_cast<double>(row[label]) - std::log(all);
      greedy = greedy && std::ranges::max_element(row) - row.begin() == pair.tokens[t];
    }
    return sum;
  }

  std::vector<Answer> ask(const std::vector<Question>& questions, AskOptions options = {}) {
    std::vector<Answer> answers(questions.size());
    std::vector<bool> seen(questions.size());
    size_t requests = 0, expected = 0;
    for (const Question& question : questions) expected += question.requests();
    tasks::ask(
        m_.model, m_.runtime, tokenizer_, options, questions,
        [&](size_t q, Answer answer) {
          EXPECT_FALSE(seen[q]);
          seen[q] = true;
          answers[q] = std::move(answer);
        },
        [&] { ++requests; });
    EXPECT_EQ(requests, expected);
    EXPECT_TRUE(std::ranges::all_of(seen, [](bool s) { return s; }));
    return answers;
  }

  std::vector<int32_t> greedy_text(std::vector<int32_t> tokens, size_t count) {
    const size_t prompt = tokens.size();
    while (tokens.size() < prompt + count) {
      const std::vector<float> logits = whole_logits(m_, tokens);
      const size_t width = logits.size() / tokens.size();
      const auto last = logits.end() - static_cast<std::ptrdiff_t>(width);
      tokens.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
  }

  tokenizers::Tokenizer tokenizer_ =
      tokenizers::Tokenizer::load(vectors("indexed/preprocess/tokenizer_bpe2k"));
  RandomModel m_{llama_shape(2, 32, 4, 2, tokenizer_.vocabulary_size(), kTexts), DType::f32};
};

TEST_F(TaskAnswers, LogLikelihoodsAreThoseOfWholeTexts) {
  std::vector<Question> questions;
  for (uint64_t q = 0; q < 9; ++q) {
    const auto context = static_cast<int64_t>(1 + q * 31);
    const Tokens prefix = random_tokens(context, tokenizer_.vocabulary_size(), q);
    Question& question = questions.emplace_back();
    for (uint64_t c = 0; c <= q % 4; ++c) {
      TokenPair pair{.tokens = prefix, .context = context};
      const Tokens rest = random_tokens(1 + static_cast<int64_t>(c * 7 % 5),
                                        tokenizer_.vocabulary_size(), 100 + 10 * q + c);
      pair.tokens.insert(pair.tokens.end(), rest.begin(), rest.end());
      question.continuations.push_back(std::move(pair));
    }
    question.wants_greedy = question.continuations.size() == 1;
  }
  Question said{.wants_greedy = true};
  TokenPair pair{.tokens = {5, 6, 7}, .context = 3};
  for (const int32_t token : greedy_text(pair.tokens, 4)) pair.tokens.push_back(token);
  said.continuations = {pair};
  questions.push_back(said);
  const auto answers = ask(questions);
  for (size_t q = 0; q < questions.size(); ++q) {
    for (size_t c = 0; c < questions[q].continuations.size(); ++c) {
      bool greedy = false;
      const double expected = plain(questions[q].continuations[c], greedy);
      EXPECT_NEAR(answers[q].log_likelihoods[c], expected, 2e-5 * std::abs(expected)) << q;
      if (questions[q].wants_greedy) {
        EXPECT_EQ(answers[q].is_greedy, greedy) << q;
      }
    }
  }
  EXPECT_TRUE(answers.back().is_greedy);
  for (const int64_t batch : {1, 3}) {
    const auto others = ask(questions, {.engine = {.max_requests = batch, .max_tokens = 40}});
    for (size_t q = 0; q < questions.size(); ++q)
      EXPECT_EQ(others[q].log_likelihoods, answers[q].log_likelihoods) << "bit for bit";
  }
}

TEST_F(TaskAnswers, TextsAreGreedyAndEndWhereTheyMust) {
  const Tokens prompt = random_tokens(20, tokenizer_.vocabulary_size(), 4);
  const Tokens all = greedy_text(prompt, 30);
  tokenizers::DecodeStream stream(tokenizer_);
  for (const int32_t token : Tokens(prompt.end() - 16, prompt.end())) stream.push(token);
  std::string text;
  for (const int32_t token : all) text += stream.push(token);
  text += stream.finish();
  const Question whole{.prompt = prompt, .max_tokens = 30};
  Question stopped = whole;
  size_t begin = text.size() / 2, end = begin + 6;
  while ((text[begin] & 0xC0) == 0x80) ++begin;
  while ((text[end] & 0xC0) == 0x80) ++end;
  const std::string stop = text.substr(begin, end - begin);
  stopped.until = {"no such text", stop};
  const auto answers = ask({whole, stopped});
  EXPECT_EQ(answers[0].text, text);
  EXPECT_EQ(answers[1].text, text.substr(0, text.find(stop)));
  const auto ended = ask({whole}, {.engine = {}, .end_tokens = {all[10]}});
  const auto first = static_cast<size_t>(std::ranges::find(all, all[10]) - all.begin());
  EXPECT_EQ(ended[0].text, text.substr(0, ended[0].text.size()));
  EXPECT_LE(ended[0].text.size(), text.size() * (first + 1) / all.size() + 20);
}

TEST_F(TaskAnswers, SaysWhenTheModelIsBroken) {
  for (parallel::ParameterSpec* placed : m_.model.parameters()) {
    Tensor& value = placed->parameter.value;
    copy_from(value, std::span<const double>(
                         std::vector<double>(static_cast<size_t>(value.elements()), NAN)));
  }
  const Question scored{.place = "here", .continuations = {{.tokens = {1, 2, 3}, .context = 1}}};
  const Question said{.place = "there", .prompt = {1, 2}, .max_tokens = 3};
  expect_contains(error_of([&] { ask({scored}); }), {"here", "NaN", "weights"});
  expect_contains(error_of([&] { ask({said}); }), {"there"});
}

}  // namespace
}  // namespace megatron::testing
