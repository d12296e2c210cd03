// Inference engines of a model divided among ranks, where each rank is a thread, and the same
// engine on one rank.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <random>

#include "base/tolerances.h"
#include "dist/ranks.h"
#include "golden/inference/shared_requests.h"
#include "inference/engine.h"
#include "inference/engine_groups.h"
#include "inference/follow.h"

namespace megatron::testing {

using inference::Engine;
using inference::EngineOptions;
using inference::EngineRanks;
using inference::Finish;
using inference::Generation;
using inference::Request;
using inference::RequestId;
using inference::RequestUpdate;

constexpr int64_t kDividedVocabulary = 96, kDividedPositions = 192;

struct Division {
  int tensor = 1, stages = 1;
  bool led = false;  // only rank 0 calls its engine
  int experts = 1;
};

// Called on each rank with its part of RandomModel's model.
using RankBody =
    std::function<void(const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks)>;

inline void on_parts(const RandomModel& m, const Division& d, const RankBody& body) {
  each_rank(d.tensor * d.stages, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    const inference::EngineGroups groups(
        {.tensor = d.tensor, .stages = d.stages, .experts = d.experts}, world);
    const auto stage = groups.build(m.model.model(), runtime, m.type(), 1);
    models::initialize(*stage, 7, runtime.stream());
    const EngineRanks ranks = groups.ranks(d.led);
    EXPECT_EQ(ranks.draws(), world.rank() == 0);
    if (ranks.led && !ranks.draws()) return inference::follow(*stage, runtime, ranks);
    const inference::Followers followers(ranks);
    body(*stage, runtime, ranks);
  });
}

// Prompts of all lengths that share prefixes; some have beams.
inline Request divided_request(uint64_t number, double temperature = 0.9) {
  Tokens prompt =
      random_tokens(static_cast<int64_t>(number * 29 % 120), kDividedVocabulary, number % 3);
  const Tokens own =
      random_tokens(1 + static_cast<int64_t>(number * 7 % 30), kDividedVocabulary, 90 + number);
  prompt.insert(prompt.end(), own.begin(), own.end());
  Request request{.number = number,
                  .prompt = prompt,
                  .max_tokens = 1 + static_cast<int64_t>(number % 9),
                  .sampling = {.temperature = temperature, .top_k = 20, .seed = 3},
                  .end_tokens = {5, 6},
                  .logprobs = static_cast<int64_t>(number % 4) - 1};
  if (number % 8 != 5) return request;
  request.sampling = {.min_tokens = 1};
  request.beams = {.beams = 3, .returned = 2};
  return request;
}

inline std::vector<Generation> each_alone(RandomModel& m, const std::vector<Request>& requests) {
  std::vector<Generation> all;
  for (const Request& r : requests)
    all.push_back(inference::generate(m.model, m.runtime, std::span(&r, 1), {})[0]);
  return all;
}

// Compares log-probabilities at all positions. The tokens must be equal.
inline void expect_near(const std::vector<Generation>& found,
                        const std::vector<Generation>& expected) {
  double difference = 0, reference = 0;
  int64_t count = 0;
  const auto compare = [&](double a, double b) {
    difference += (a - b) * (a - b);
    reference += b * b;
    ++count;
  };
  for (size_t i = 0; i < expected.size(); ++i) {
    const Generation &f = found[i], &e = expected[i];
    EXPECT_EQ(tokens_of(f), tokens_of(e)) << "request " << i;
    EXPECT_EQ(f.finish, e.finish);
    ASSERT_EQ(f.beams.size(), e.beams.size());
    for (size_t b = 0; b < e.beams.size(); ++b) {
      EXPECT_EQ(tokens_of(Generation{.tokens = f.beams[b].tokens}),
                tokens_of(Generation{.tokens = e.beams[b].tokens}));
      compare(f.beams[b].score, e.beams[b].score);
    }
    EXPECT_EQ(f.expert_choices, e.expert_choices) << "request " << i;
    ASSERT_EQ(f.prompt_log_probabilities.size(), e.prompt_log_probabilities.size());
    for (size_t t = 0; t < e.prompt_log_probabilities.size(); ++t)
      compare(f.prompt_log_probabilities[t], e.prompt_log_probabilities[t]);
    for (size_t t = 0; t < std::min(f.tokens.size(), e.tokens.size()); ++t) {
      compare(f.tokens[t].draw.log_probability, e.tokens[t].draw.log_probability);
      ASSERT_EQ(f.tokens[t].alternatives.size(), e.tokens[t].alternatives.size());
      for (size_t k = 0; k < e.tokens[t].alternatives.size(); ++k)
        compare(f.tokens[t].alternatives[k].log_probability,
                e.tokens[t].alternatives[k].log_probability);
    }
  }
  EXPECT_GT(count, 500);
  const double rms = std::sqrt(reference / static_cast<double>(count));
  EXPECT_LE(tolerance::tensor_metric(std::sqrt(difference), std::sqrt(reference), rms, count),
            tolerance::kLayoutFp32);
}

}  // namespace megatron::testing
