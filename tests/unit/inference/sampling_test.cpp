#include "inference/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace megatron::inference {
namespace {

using Tokens = std::vector<int32_t>;

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// Draws at positions 0 .. count - 1.
std::vector<int> counts(const std::vector<float>& logits, const SamplingOptions& options, int count,
                        uint64_t request = 0) {
  std::vector<int> counts(logits.size());
  Tokens tokens;
  for (int i = 0; i < count; ++i) {
    ++counts[static_cast<size_t>(draw(logits, {.tokens = tokens}, options, request))];
    tokens.push_back(-1);  // a position, but not a token that penalties count
  }
  return counts;
}

// Pearson's statistic of counts against probabilities; a count with probability 0 must be 0.
double chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const double all = std::accumulate(counts.begin(), counts.end(), 0);
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * all;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

TEST(Draw, TemperatureZeroAndTopOneTakeTheLargestFirst) {
  const std::vector<float> logits = {1, 3, 2, 3};
  for (int32_t position = 0; position < 20; ++position) {
    const Tokens tokens(static_cast<size_t>(position), 0);
    EXPECT_EQ(draw(logits, {.tokens = tokens}, {.temperature = 0}, 0), 1);
    EXPECT_EQ(draw(logits, {.tokens = tokens}, {.temperature = 5, .top_k = 1}, 0), 1);
    EXPECT_EQ(draw(logits, {.tokens = tokens}, {.temperature = 1e-300}, 0) % 2, 1);
  }
}

// In order of id: the uniform number u picks the first token whose cumulative share exceeds it.
TEST(Draw, ByHand) {
  const std::vector<float> logits = logits_of({0.125, 0.5, 0.125, 0.25});
  const RandomStream stream(7, "generate/3");
  Tokens tokens;
  for (uint64_t position = 0; position < 300; ++position) {
    const double u = stream.uniform(position);
    const auto drawn = [&](SamplingOptions options) {
      options.seed = 7;
      return draw(logits, {.tokens = tokens}, options, 3);
    };
    EXPECT_EQ(drawn({}), u < 0.125 ? 0 : u < 0.625 ? 1 : u < 0.75 ? 2 : 3);
    EXPECT_EQ(drawn({.top_k = 2}), u < 2.0 / 3 ? 1 : 3);
    EXPECT_EQ(drawn({.top_p = 0.7}), u < 2.0 / 3 ? 1 : 3);
    EXPECT_EQ(drawn({.min_p = 0.4}), u < 2.0 / 3 ? 1 : 3);
    EXPECT_EQ(drawn({.top_k = 3}), u < 1.0 / 7 ? 0 : u < 5.0 / 7 ? 1 : 3);
    tokens.push_back(-1);
  }
}

// Probabilities are 0.4, 0.3, 0.2, 0.1 and are renormalized after each cut, before the next.
TEST(Draw, DistributionsByHand) {
  const std::vector<double> p = {0.2, 0.4, 0.1, 0.3};
  const std::vector<float> logits = logits_of(p);
  const double squares = 0.04 + 0.16 + 0.01 + 0.09;
  const auto expect = [&](const char* name, SamplingOptions options,
                          const std::vector<double>& probabilities) {
    for (const uint64_t seed : {1, 2}) {
      options.seed = seed;
      // With 3 degrees of freedom, 16.3 is exceeded once in a thousand.
      EXPECT_LT(chi_square(counts(logits, options, 20000), probabilities), 16.3) << name;
    }
  };
  expect("plain", {}, p);
  expect("temperature 0.5", {.temperature = 0.5},
         {0.04 / squares, 0.16 / squares, 0.01 / squares, 0.09 / squares});
  expect("top-k", {.top_k = 3}, {2.0 / 9, 4.0 / 9, 0, 3.0 / 9});
  expect("top-k above all", {.top_k = 9}, p);
  expect("top-p", {.top_p = 0.65}, {0, 4.0 / 7, 0, 3.0 / 7});
  expect("top-p of the most likely", {.top_p = 0.01}, {0, 1, 0, 0});
  expect("min-p", {.min_p = 0.45}, {2.0 / 9, 4.0 / 9, 0, 3.0 / 9});
  expect("min-p 1", {.min_p = 1}, {0, 1, 0, 0});
  // The first two of 4/9, 3/9, 2/9 add up to 7/9 > 0.75; without top-k three would be needed.
  expect("top-k, then top-p", {.top_k = 3, .top_p = 0.75}, {0, 4.0 / 7, 0, 3.0 / 7});
  // At temperature 1/2, 0.4 and 0.3 have 25/30 of the total.
  expect("temperature, then top-p", {.temperature = 0.5, .top_p = 0.8}, {0, 0.64, 0, 0.36});
  // 0.3 has (3/4)^2 of 0.4's weight, and 0.2 only 1/4.
  expect("temperature, then min-p", {.temperature = 0.5, .min_p = 0.5}, {0, 0.64, 0, 0.36});
  expect("top-p, then min-p", {.top_p = 0.9, .min_p = 0.6}, {0, 4.0 / 7, 0, 3.0 / 7});
}

TEST(Draw, RepetitionPenalty) {
  const std::vector<float> logits = {2, 1, -1, -2};
  const double e[] = {std::exp(1.0), std::exp(1.0), std::exp(-2.0), std::exp(-2.0)};
  const double all = e[0] + e[1] + e[2] + e[3];
  std::vector<int> found(4);
  // 2 / 2 and -1 * 2. The penalty applies once, however often the token occurs.
  const Tokens tokens = {0, 2, 0, 77, -1};
  for (uint64_t request = 0; request < 20000; ++request)
    ++found[static_cast<size_t>(
        draw(logits, {.tokens = tokens}, {.repetition_penalty = 2}, request))];
  EXPECT_LT(chi_square(found, {e[0] / all, e[1] / all, e[2] / all, e[3] / all}), 16.3);
  EXPECT_EQ(draw(logits, {.tokens = Tokens{0}}, {.temperature = 0, .repetition_penalty = 3}, 0), 1);
  EXPECT_EQ(draw(logits, {.tokens = Tokens{0}}, {.temperature = 0, .repetition_penalty = 1}, 0), 0);
  EXPECT_EQ(draw(logits, {.tokens = Tokens{1}}, {.temperature = 0, .repetition_penalty = 0.25}, 0),
            1);
  // The result exceeds the range of a float.
  for (const double temperature : {0.0, 1.0}) {
    const std::vector<float> positive = {3, 2, 1};
    EXPECT_EQ(draw(positive, {.tokens = Tokens{2}},
                   {.temperature = temperature, .repetition_penalty = 1e-320}, 0),
              2);
    const std::vector<float> negative = {-2, -3, -1};
    EXPECT_EQ(draw(negative, {.tokens = Tokens{0, 2}},
                   {.temperature = temperature, .repetition_penalty = 1e308}, 0),
              1);
  }
}

// A logit is lowered by the token's count in the generated text, and once more if the token occurs.
TEST(Draw, PresenceAndFrequencyPenalties) {
  const std::vector<float> logits = {1, 1, 1, 1};
  const Tokens tokens = {1, 1, 1, 2, 0, 2, 2, 77, -1};  // the first four are the prompt
  const TextSoFar text{.tokens = tokens, .prompt = 4};
  const auto odds = [&](const SamplingOptions& options) {
    std::vector<double> p = probabilities(logits, text, options);
    for (size_t id = 0; id < 3; ++id) p[id] = std::log(p[id] / p[3]);
    p.pop_back();
    return p;
  };
  const auto expect = [](const std::vector<double>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
  };
  expect(odds({.presence_penalty = 0.5}), {-0.5, 0, -0.5});
  expect(odds({.frequency_penalty = 0.25}), {-0.25, 0, -0.5});
  expect(odds({.presence_penalty = 0.5, .frequency_penalty = -0.25}), {-0.25, 0, 0});
}

TEST(Draw, LogitBias) {
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(draw(logits, {}, {.temperature = 0, .logit_bias = {{1, 1.5}}}, 0), 1);
  EXPECT_EQ(draw(logits, {}, {.temperature = 0, .logit_bias = {{0, -100}, {2, 1}, {9, 9}}}, 0), 1);
  const auto p = probabilities(logits, {}, {.logit_bias = {{2, 2}}});
  EXPECT_NEAR(p[2], p[0], 1e-15);
}

TEST(Draw, NoEndBeforeTheMinimum) {
  const std::vector<float> logits = {1, 5, 0, 4};
  const Tokens ends = {1, 3, 99}, tokens = {7, 7, 7, 7, 7};
  for (size_t length = 2; length <= 5; ++length) {  // 0 to 3 generated tokens
    const TextSoFar text{
        .tokens = std::span(tokens).first(length), .prompt = 2, .end_tokens = ends};
    EXPECT_EQ(draw(logits, text, {.temperature = 0, .min_tokens = 2}, 0), length < 4 ? 0 : 1);
    const double end = probabilities(logits, text, {.min_tokens = 2})[3];
    EXPECT_EQ(end > 0.1, length >= 4) << end;
    EXPECT_EQ(end == 0, length < 4) << end;
  }
}

TEST(Draw, OnlyWhatIsAllowed) {
  std::vector<float> logits(130);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 10) / 10.0f;
  std::vector<uint64_t> allowed = {1u << 3, 0, 1u << 1};
  EXPECT_EQ(draw(logits, {.allowed = allowed}, {.temperature = 0}, 0), 129);
  const auto p = probabilities(logits, {.allowed = allowed}, {});
  EXPECT_EQ(std::ranges::count(p, 0.0), 128);
  EXPECT_NEAR(p[3] + p[129], 1, 1e-15);
  EXPECT_GT(p[3], 0.2);
}

TEST(Draw, SaysWhyNothingIsAllowed) {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {1, 2, none};
  const auto error = [&](const TextSoFar& text, const SamplingOptions& options) -> std::string {
    try {
      draw(logits, text, options, 0);
    } catch (const NothingAllowed& e) {
      return e.what();
    }
    return "";
  };
  const Tokens tokens = {0, 1}, ends = {1};
  // Bit 3 belongs to no token.
  const std::vector<uint64_t> nothing = {8}, the_end = {2}, impossible = {4};
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{.temperature = temperature, .min_tokens = 1};
    const TextSoFar begun{.tokens = tokens, .prompt = 1, .end_tokens = ends};
    TextSoFar text = begun;
    text.allowed = nothing;
    EXPECT_EQ(error(text, options),
              "no token can be sampled after 1 generated ones: the grammar of the output does not "
              "allow any");
    text.allowed = impossible;
    EXPECT_NE(error(text, options).find("a logit of -infinity"), std::string::npos);
    text.allowed = the_end;
    EXPECT_EQ(error(text, options), "");
    text.prompt = 2;
    EXPECT_NE(error(text, options)
                  .find("only allows the output to end, but at least 1 tokens are required"),
              std::string::npos);
  }
}

TEST(Draw, DependsOnSeedRequestAndPositionAlone) {
  const std::vector<float> flat(50, 0.0f);
  int equal_seeds = 0, equal_positions = 0, equal_requests = 0;
  Tokens tokens;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = draw(flat, {.tokens = tokens}, {.seed = 1}, 4);
    EXPECT_EQ(draw(flat, {.tokens = Tokens(tokens.size(), 9)}, {.seed = 1}, 4), token);
    equal_seeds += draw(flat, {.tokens = tokens}, {.seed = 2}, 4) == token;
    equal_requests += draw(flat, {.tokens = tokens}, {.seed = 1}, 5) == token;
    tokens.push_back(3);
    equal_positions += draw(flat, {.tokens = tokens}, {.seed = 1}, 4) == token;
  }
  EXPECT_LT(equal_seeds, 20);
  EXPECT_LT(equal_requests, 20);
  EXPECT_LT(equal_positions, 20);
}

// Partial selection matches a full sort, with many equal logits among 5000.
class Selection : public ::testing::Test {
 protected:
  Selection() : logits_(5000), order_(5000) {
    const RandomStream stream(11, "logits");
    for (size_t i = 0; i < logits_.size(); ++i)
      logits_[i] = static_cast<float>(stream.bits(i) % 300) / 60.0f;
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, std::greater<>(),
                             [&](int32_t t) { return logits_[static_cast<size_t>(t)]; });
  }
  double weight(size_t rank) const {
    return std::exp(double{logits_[static_cast<size_t>(order_[rank])]});
  }
  // Checks the remaining probabilities, which belong to the first `count` tokens only.
  void expect_first(size_t count, const SamplingOptions& options) const {
    double total = 0;
    for (size_t i = 0; i < count; ++i) total += weight(i);
    const std::vector<double> found = probabilities(logits_, {}, options);
    for (size_t i = 0; i < order_.size(); ++i) {
      const double expected = i < count ? weight(i) / total : 0;
      ASSERT_NEAR(found[static_cast<size_t>(order_[i])], expected, 1e-12 * expected)
          << "rank " << i << " of " << count;
    }
  }

  std::vector<float> logits_;
  Tokens order_;
};

TEST_F(Selection, MostLikely) {
  for (const int64_t k : {0, 1, 63, 64, 65, 600, 5000, 9000}) {
    const Tokens found = most_likely(logits_, k);
    ASSERT_EQ(found.size(), static_cast<size_t>(std::min<int64_t>(k, 5000)));
    EXPECT_TRUE(std::equal(found.begin(), found.end(), order_.begin()));
  }
}

TEST_F(Selection, TopKKeepsEqualOnesById) {
  for (const size_t k : {1, 2, 63, 77, 78, 79, 600, 4999, 5000, 9000})
    expect_first(std::min<size_t>(k, 5000), {.top_k = static_cast<int64_t>(k)});
}

TEST_F(Selection, TopPKeepsEqualOnesById) {
  double all = 0, sum = 0;
  for (size_t i = 0; i < order_.size(); ++i) all += weight(i);
  for (size_t i = 0; i < order_.size(); ++i) {
    sum += weight(i);
    // Uses the middle of the token's interval, so that rounding cannot matter.
    if (i % 97 == 0 || i + 3 > order_.size())
      expect_first(i + 1, {.top_p = (sum - weight(i) / 2) / all});
  }
}

TEST(Draw, MinusInfinityIsNeverDrawn) {
  const float none = -std::numeric_limits<float>::infinity();
  const auto found = counts({none, 0, none, 0}, {}, 500);
  EXPECT_EQ(found[0] + found[2], 0);
  EXPECT_GT(found[1], 200);
}

TEST(Draw, RefusesLogitsThatAreNoNumbers) {
  const float none = std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THROW(draw(std::vector<float>{0, std::nanf(""), 1}, {}, {.temperature = temperature}, 0),
                 Error);
    EXPECT_THROW(draw(std::vector<float>{0, none, 1}, {}, {.temperature = temperature}, 0), Error);
    EXPECT_THROW(draw(std::vector<float>{-none, -none}, {}, {.temperature = temperature}, 0),
                 Error);
  }
}

TEST(SamplingOptions, RefusesBadOnes) {
  EXPECT_NO_THROW(SamplingOptions{}.check());
  for (const SamplingOptions& bad :
       std::initializer_list<SamplingOptions>{{.temperature = -1},
                                              {.temperature = NAN},
                                              {.temperature = INFINITY},
                                              {.top_k = -1},
                                              {.top_p = 0},
                                              {.top_p = 1.1},
                                              {.top_p = NAN},
                                              {.min_p = -0.1},
                                              {.min_p = 1.1},
                                              {.repetition_penalty = 0},
                                              {.repetition_penalty = -1},
                                              {.repetition_penalty = NAN},
                                              {.presence_penalty = -2.1},
                                              {.presence_penalty = NAN},
                                              {.frequency_penalty = 2.1},
                                              {.frequency_penalty = NAN},
                                              {.logit_bias = {{3, 100.5}}},
                                              {.logit_bias = {{3, 1}, {4, NAN}}},
                                              {.min_tokens = -1}}) {
    EXPECT_THROW(bad.check(), Error);
  }
}

TEST(SamplingOptions, AreCalledAsTheirSourceCallsThem) {
  const auto message = [](const SamplingOptions& options, OptionName name) -> std::string {
    try {
      options.check(name);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message({.top_p = 2}, as_flag), "--top-p is 2; it must lie in (0, 1], 1: all tokens");
  const OptionName of_json = [](std::string_view option) {
    return "'" + std::string(option) + "'";
  };
  EXPECT_EQ(message({.presence_penalty = 3}, of_json),
            "'presence_penalty' is 3; it must lie in [-2, 2], 0: none");
  EXPECT_EQ(message({.logit_bias = {{5, -101}}}, of_json),
            "'logit_bias' of token 5 is -101; it must lie in [-100, 100]");
}

}  // namespace
}  // namespace megatron::inference
