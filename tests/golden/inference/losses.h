// Compares log-probabilities of generations with the losses of training and evaluation, bit for
// bit.
#pragma once

#include <algorithm>

#include "golden/inference/support.h"
#include "inference/generate.h"

namespace megatron::testing {

inline Tokens tokens_of(const inference::Generation& g) {
  Tokens ids;
  for (const auto& token : g.tokens) ids.push_back(token.draw.token);
  return ids;
}

// All floating-point values of a generation.
inline std::vector<double> numbers_of(const inference::Generation& g) {
  std::vector<double> all = g.prompt_log_probabilities;
  for (const auto& token : g.tokens) {
    all.push_back(token.draw.token);
    all.push_back(token.draw.log_probability);
    for (const auto& other : token.alternatives) {
      all.push_back(other.token);
      all.push_back(other.log_probability);
    }
  }
  all.push_back(static_cast<double>(g.finish));
  for (const inference::BeamResult& beam : g.beams) {
    const std::vector<double> of_beam =
        numbers_of(inference::Generation{.tokens = beam.tokens, .finish = beam.finish});
    all.insert(all.end(), of_beam.begin(), of_beam.end());
    all.push_back(beam.score);
  }
  return all;
}

inline void expect_losses_of_evaluation(RandomModel& m, const inference::Request& request,
                                        const inference::Generation& g) {
  Tokens all = request.prompt;
  const Tokens generated = tokens_of(g);
  all.insert(all.end(), generated.begin(), generated.end());
  // Uses a batch of three, as evaluation might.
  const std::vector<float> losses = whole_losses(m, {all, all, all});
  EXPECT_EQ(whole_losses(m, {all, all, all}, Tape::Mode::record), losses);
  size_t i = 0;
  if (request.logprobs >= 0) {
    ASSERT_EQ(g.prompt_log_probabilities.size(), request.prompt.size() - 1);
    for (const double p : g.prompt_log_probabilities) EXPECT_EQ(p, -double{losses[i++]});
  } else {
    EXPECT_TRUE(g.prompt_log_probabilities.empty());
  }
  i = request.prompt.size() - 1;
  for (const auto& token : g.tokens) {
    EXPECT_EQ(token.draw.log_probability, -double{losses[i]});
    ASSERT_EQ(token.alternatives.size(),
              static_cast<size_t>(std::max<int64_t>(request.logprobs, 0)));
    for (const auto& other : token.alternatives) {
      Tokens changed(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      changed.push_back(other.token);
      EXPECT_EQ(other.log_probability, -double{whole_losses(m, {changed})[i]});
    }
    ++i;
  }
}

}  // namespace megatron::testing
