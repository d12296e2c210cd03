// Requests that share pages, wait for pages and return them.
#pragma once

#include <algorithm>
#include <map>
#include <random>

#include "golden/inference/losses.h"
#include "inference/engine.h"

namespace megatron::testing {

inline constexpr int64_t kSharedVocabulary = 53, kSharedPositions = 256;

// Requests of all lengths whose prompts share prefixes with others; some of them with beams.
inline inference::Request shared_request(uint64_t number) {
  Tokens prompt =
      random_tokens(static_cast<int64_t>(number * 29 % 150), kSharedVocabulary, number % 3);
  const Tokens own =
      random_tokens(1 + static_cast<int64_t>(number * 7 % 30), kSharedVocabulary, 90 + number);
  prompt.insert(prompt.end(), own.begin(), own.end());
  inference::Request request{.number = number,
                             .prompt = prompt,
                             .max_tokens = 1 + static_cast<int64_t>(number % 9),
                             .sampling = {.temperature = 0.9, .top_k = 20, .seed = 3},
                             .logprobs = static_cast<int64_t>(number % 4) - 1};
  if (number % 7 != 3) return request;
  request.sampling = {};
  request.end_tokens = {1, 5};
  request.beams = {.beams = 3, .returned = 1 + static_cast<int64_t>(number % 3)};
  return request;
}

using Results = std::map<inference::RequestId, inference::Generation>;

inline void take(std::vector<inference::RequestUpdate> updates, Results& results) {
  for (inference::RequestUpdate& update : updates) {
    inference::Generation& g = results[update.id];
    std::ranges::copy(update.prompt_log_probabilities,
                      std::back_inserter(g.prompt_log_probabilities));
    std::ranges::copy(update.expert_choices, std::back_inserter(g.expert_choices));
    for (auto& token : update.tokens) g.tokens.push_back(std::move(token));
    if (update.finish) g.finish = *update.finish;
    if (!update.beams.empty()) g.beams = std::move(update.beams);
  }
}

inline int64_t bytes_of_blocks(RandomModel& m, int64_t blocks, int64_t block_size) {
  nn::SequenceStateShape shape{.layers = m.model.layer_caches(), .block_size = block_size};
  shape.pages.assign(nn::cache_groups(shape.layers).size(), blocks);
  return shape.bytes(m.type());
}

// Submits the requests in random order and at random moments, cancels some more, and uses a cache
// too small for all that run. Each request gets the result that it gets alone, in a cache where
// nothing is shared.
inline void expect_results_of_each_alone(RandomModel& m, uint64_t requests, bool preempted = true) {
  std::vector<std::vector<double>> expected;
  for (uint64_t n = 0; n < requests; ++n) {
    const inference::Request r = shared_request(n);
    expected.push_back(
        numbers_of(inference::generate(m.model, m.runtime, std::span(&r, 1), {})[0]));
  }
  for (const uint64_t seed : {1, 2}) {
    std::mt19937_64 random(seed);
    std::vector<uint64_t> order(requests);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    const int64_t block = seed == 1 ? least_block(m) : 64;
    inference::Engine e(m.model, m.runtime,
                        {.max_requests = 12,
                         .max_tokens = seed == 1 ? 40 : 200,
                         .block_size = block,
                         .cache_bytes = bytes_of_blocks(m, block == 32 ? 14 : 7, block)});
    Results results;
    std::map<uint64_t, inference::RequestId> ids;
    for (const uint64_t number : order) {
      ids[number] = e.submit(shared_request(number));
      const inference::RequestId cancelled = e.submit(shared_request(number + 1000));
      for (uint64_t s = random() % 3; s > 0; --s) take(e.step(), results);
      e.cancel(cancelled);
    }
    while (!e.idle()) take(e.step(), results);
    for (uint64_t n = 0; n < requests; ++n)
      EXPECT_EQ(numbers_of(results[ids[n]]), expected[n]) << "request " << n << ", seed " << seed;
    EXPECT_GT(e.statistics().cached_tokens, 0);
    if (preempted) {
      EXPECT_GT(e.statistics().preemptions, 0);
    }
    EXPECT_EQ(e.cache_use().used, 0);
  }
}

// Eight texts of a model that has slots alone, in a cache of eight blocks: all fill a block in the
// same pass, in which each needs a second slot, so that some give up theirs and continue from a
// snapshot. Each gets the result that it gets alone.
inline void expect_texts_continue_from_snapshots(RandomModel& m, int64_t prompt, int64_t tokens,
                                                 int64_t block_size) {
  std::vector<inference::Request> requests;
  for (uint64_t n = 0; n < 8; ++n)
    requests.push_back({.number = n,
                        .prompt = random_tokens(prompt, kSharedVocabulary, n),
                        .max_tokens = tokens,
                        .sampling = {.seed = 5}});
  inference::Engine e(m.model, m.runtime,
                      {.max_requests = 8,
                       .block_size = block_size,
                       .cache_bytes = bytes_of_blocks(m, 8, block_size)});
  EXPECT_EQ(e.cache_use().blocks, 8);
  Results results;
  for (const inference::Request& request : requests) e.submit(request);
  while (!e.idle()) take(e.step(), results);
  EXPECT_GT(e.statistics().preemptions, 0);
  for (const inference::Request& r : requests)
    EXPECT_EQ(numbers_of(results[r.number + 1]),
              numbers_of(inference::generate(m.model, m.runtime, std::span(&r, 1), {})[0]))
        << r.number;
}

}  // namespace megatron::testing
