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
    ++counts[static_cast<size_t>(draw(logits, tokens, options, request))];
    tokens.push_back(-1);  // a position, but no token that a penalty finds
  }
  return counts;
}

// Pearson's statistic of counts against probabilities; where one is 0 the count must be 0.
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
    EXPECT_EQ(draw(logits, tokens, {.temperature = 0}, 0), 1);
    EXPECT_EQ(draw(logits, tokens, {.temperature = 5, .top_k = 1}, 0), 1);
    EXPECT_EQ(draw(logits, tokens, {.temperature = 1e-300}, 0) % 2, 1);
  }
}

// Most likely first: the uniform number u picks the first token whose cumulative share exceeds it.
TEST(Draw, ByHand) {
  const std::vector<float> logits = logits_of({0.125, 0.5, 0.125, 0.25});
  const RandomStream stream(7, "generate/3");
  Tokens tokens;
  for (uint64_t position = 0; position < 300; ++position) {
    const double u = stream.uniform(position);
    EXPECT_EQ(draw(logits, tokens, {.seed = 7}, 3), u < 0.5 ? 1 : u < 0.75 ? 3 : u < 0.875 ? 0 : 2);
    EXPECT_EQ(draw(logits, tokens, {.top_k = 2, .seed = 7}, 3), u < 2.0 / 3 ? 1 : 3);
    EXPECT_EQ(draw(logits, tokens, {.top_p = 0.7, .seed = 7}, 3), u < 2.0 / 3 ? 1 : 3);
    EXPECT_EQ(draw(logits, tokens, {.min_p = 0.4, .seed = 7}, 3), u < 2.0 / 3 ? 1 : 3);
    tokens.push_back(-1);
  }
}

struct Distribution {
  const char* name;
  SamplingOptions options;
  std::vector<double> probabilities;
};

// Probabilities 0.4, 0.3, 0.2, 0.1, after each cut renormalised before the next is made.
TEST(Draw, DistributionsByHand) {
  const std::vector<double> p = {0.2, 0.4, 0.1, 0.3};
  const std::vector<float> logits = logits_of(p);
  const double squares = 0.04 + 0.16 + 0.01 + 0.09;
  const Distribution cases[] = {
      {"plain", {}, p},
      {"temperature 0.5",
       {.temperature = 0.5},
       {0.04 / squares, 0.16 / squares, 0.01 / squares, 0.09 / squares}},
      {"top-k", {.top_k = 3}, {2.0 / 9, 4.0 / 9, 0, 3.0 / 9}},
      {"top-k above all", {.top_k = 9}, p},
      {"top-p", {.top_p = 0.65}, {0, 4.0 / 7, 0, 3.0 / 7}},
      {"top-p of the most likely", {.top_p = 0.01}, {0, 1, 0, 0}},
      {"min-p", {.min_p = 0.45}, {2.0 / 9, 4.0 / 9, 0, 3.0 / 9}},
      {"min-p 1", {.min_p = 1}, {0, 1, 0, 0}},
      // Of 4/9, 3/9, 2/9 the first two have 7/9 > 0.75; without top-k three would be needed.
      {"top-k, then top-p", {.top_k = 3, .top_p = 0.75}, {0, 4.0 / 7, 0, 3.0 / 7}},
      // At temperature 1/2 0.4 and 0.3 have 25/30 of all.
      {"temperature, then top-p", {.temperature = 0.5, .top_p = 0.8}, {0, 0.64, 0, 0.36}},
      // 0.3 has (3/4)^2 of 0.4's weight, 0.2 only 1/4.
      {"temperature, then min-p", {.temperature = 0.5, .min_p = 0.5}, {0, 0.64, 0, 0.36}},
      {"top-p, then min-p", {.top_p = 0.9, .min_p = 0.6}, {0, 4.0 / 7, 0, 3.0 / 7}},
  };
  for (Distribution d : cases) {
    for (const uint64_t seed : {1, 2}) {
      d.options.seed = seed;
      // 3 degrees of freedom: 16.3 is passed once in a thousand.
      EXPECT_LT(chi_square(counts(logits, d.options, 20000), d.probabilities), 16.3) << d.name;
    }
  }
}

TEST(Draw, RepetitionPenalty) {
  const std::vector<float> logits = {2, 1, -1, -2};
  const double e[] = {std::exp(1.0), std::exp(1.0), std::exp(-2.0), std::exp(-2.0)};
  const double all = e[0] + e[1] + e[2] + e[3];
  std::vector<int> found(4);
  // 2 / 2, and -1 * 2; once, however often they stand there.
  const Tokens tokens = {0, 2, 0, 77, -1};
  for (uint64_t request = 0; request < 20000; ++request)
    ++found[static_cast<size_t>(draw(logits, tokens, {.repetition_penalty = 2}, request))];
  EXPECT_LT(chi_square(found, {e[0] / all, e[1] / all, e[2] / all, e[3] / all}), 16.3);
  EXPECT_EQ(draw(logits, Tokens{0}, {.temperature = 0, .repetition_penalty = 3}, 0), 1);
  EXPECT_EQ(draw(logits, Tokens{0}, {.temperature = 0, .repetition_penalty = 1}, 0), 0);
  EXPECT_EQ(draw(logits, Tokens{1}, {.temperature = 0, .repetition_penalty = 0.25}, 0), 1);
  // Beyond what a number holds.
  for (const double temperature : {0.0, 1.0}) {
    const std::vector<float> positive = {3, 2, 1};
    EXPECT_EQ(
        draw(positive, Tokens{2}, {.temperature = temperature, .repetition_penalty = 1e-320}, 0),
        2);
    const std::vector<float> negative = {-2, -3, -1};
    EXPECT_EQ(
        draw(negative, Tokens{0, 2}, {.temperature = temperature, .repetition_penalty = 1e308}, 0),
        1);
  }
}

TEST(Draw, DependsOnSeedRequestAndPositionAlone) {
  const std::vector<float> flat(50, 0.0f);
  int equal_seeds = 0, equal_positions = 0, equal_requests = 0;
  Tokens tokens;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = draw(flat, tokens, {.seed = 1}, 4);
    EXPECT_EQ(draw(flat, Tokens(tokens.size(), 9), {.seed = 1}, 4), token);
    equal_seeds += draw(flat, tokens, {.seed = 2}, 4) == token;
    equal_requests += draw(flat, tokens, {.seed = 1}, 5) == token;
    tokens.push_back(3);
    equal_positions += draw(flat, tokens, {.seed = 1}, 4) == token;
  }
  EXPECT_LT(equal_seeds, 20);
  EXPECT_LT(equal_requests, 20);
  EXPECT_LT(equal_positions, 20);
}

// Partial selection finds what a full sort finds, with many equal logits among 5000.
TEST(Draw, SortsNoMoreThanItNeedsToTheSameResult) {
  std::vector<float> logits(5000);
  const RandomStream stream(11, "logits");
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(stream.bits(i) % 300) / 60.0f;
  Tokens order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](int32_t t) { return logits[static_cast<size_t>(t)]; });
  for (const int64_t k : {0, 1, 63, 64, 65, 600, 5000, 9000}) {
    const Tokens found = most_likely(logits, k);
    ASSERT_EQ(found.size(), static_cast<size_t>(std::min<int64_t>(k, 5000)));
    EXPECT_TRUE(std::equal(found.begin(), found.end(), order.begin()));
  }
  const auto weight = [&](int32_t t) { return std::exp(double{logits[static_cast<size_t>(t)]}); };
  for (const int64_t k : {0, 3, 70, 700}) {
    double total = 0;
    const size_t kept = k == 0 ? order.size() : static_cast<size_t>(k);
    for (size_t i = 0; i < kept; ++i) total += weight(order[i]);
    Tokens tokens;
    for (uint64_t position = 0; position < 100; ++position) {
      const double u = RandomStream(1, "generate/0").uniform(position);
      size_t i = 0;
      for (double sum = weight(order[0]); sum <= u * total && i + 1 < kept;)
        sum += weight(order[++i]);
      EXPECT_EQ(draw(logits, tokens, {.top_k = k, .seed = 1}, 0), order[i]) << k;
      tokens.push_back(-1);
    }
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
                                              {.repetition_penalty = NAN}}) {
    EXPECT_THROW(bad.check(), Error);
  }
}

}  // namespace
}  // namespace megatron::inference
