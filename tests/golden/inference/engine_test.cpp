// Requests that are submitted and finish while others run.
#include "inference/engine.h"

#include <map>

#include "base/error.h"
#include "golden/inference/losses.h"
#include "inference/generate.h"

namespace megatron::testing {
namespace {

using inference::Engine;
using inference::EngineOptions;
using inference::Finish;
using inference::Generation;
using inference::Request;
using inference::RequestId;
using inference::RequestUpdate;

constexpr int64_t kVocabulary = 97, kPositions = 64;

Request request(uint64_t number) {
  return {
      .number = number,
      .prompt = random_tokens(1 + static_cast<int64_t>(number) * 37 % 40, kVocabulary, 50 + number),
      .max_tokens = 3 + static_cast<int64_t>(number % 4),
      .sampling = {.temperature = 0.9, .top_k = 20, .seed = 3},
      .logprobs = static_cast<int64_t>(number % 3)};
}

class Engines : public ::testing::TestWithParam<bool> {
 protected:
  // Result of the request alone in a new engine.
  std::vector<double> alone(const Request& r) {
    return numbers_of(inference::generate(m_.model, m_.runtime, std::span(&r, 1), {})[0]);
  }
  Engine engine(int64_t batch, int64_t prefill = 16) {
    return Engine(m_.model, m_.runtime, {.max_requests = batch, .max_tokens = prefill});
  }

  RandomModel m_{GetParam() ? llama_shape(2, 32, 4, 2, kVocabulary, kPositions)
                            : gpt2_shape(2, 32, 4, kVocabulary, kPositions),
                 DType::f32};
};

// Collects the results of an engine's requests by id.
class Results {
 public:
  explicit Results(Engine& engine) : engine_(engine) {}

  void step() {
    for (RequestUpdate& update : engine_.step()) {
      EXPECT_FALSE(finished_[update.id]) << "an update after the last one";
      Generation& g = of_[update.id];
      g.prompt_log_probabilities.insert(g.prompt_log_probabilities.end(),
                                        update.prompt_log_probabilities.begin(),
                                        update.prompt_log_probabilities.end());
      for (auto& token : update.tokens) g.tokens.push_back(std::move(token));
      if (!update.finish) continue;
      g.finish = *update.finish;
      finished_[update.id] = true;
    }
  }
  void run() {
    while (!engine_.idle()) step();
  }
  const Generation& of(RequestId id) { return of_[id]; }
  bool finished(RequestId id) { return finished_[id]; }

 private:
  Engine& engine_;
  std::map<RequestId, Generation> of_;
  std::map<RequestId, bool> finished_;
};

// A result depends neither on the order of submission nor on the requests that run with it, even if
// some are submitted midway and others cancelled: its random numbers follow from its number.
TEST_P(Engines, AResultIsThatOfTheRequestAlone) {
  constexpr size_t kRequests = 8;
  std::vector<std::vector<double>> expected;
  for (uint64_t n = 0; n < kRequests; ++n) expected.push_back(alone(request(n)));
  for (const int64_t batch : {1, 3, 8}) {
    for (const uint64_t turn : {1u, 3u, 7u}) {
      Engine e = engine(batch);
      Results results(e);
      std::vector<std::pair<uint64_t, RequestId>> submitted;
      for (uint64_t i = 0; i < kRequests; ++i) {
        const uint64_t number = (i * turn + batch) % kRequests;
        submitted.emplace_back(number, e.submit(request(number)));
        const RequestId cancelled = e.submit(request(100 + i));
        for (uint64_t s = 0; s < turn; ++s) results.step();
        e.cancel(cancelled);
      }
      results.run();
      for (const auto& [number, id] : submitted) {
        EXPECT_TRUE(results.finished(id));
        EXPECT_EQ(numbers_of(results.of(id)), expected[number])
            << "request " << number << ", batch " << batch << ", turn " << turn;
      }
    }
  }
}

// The waiting request starts when the first ends, while another continues.
TEST_P(Engines, AFreePlaceIsTakenByTheNextThatWaits) {
  Engine e = engine(2);
  Results results(e);
  const RequestId brief = e.submit({.number = 1, .prompt = {1}, .max_tokens = 2});
  const RequestId lasting = e.submit({.number = 2, .prompt = {2}, .max_tokens = 12});
  const RequestId next = e.submit({.number = 3, .prompt = {3}, .max_tokens = 2});
  const RequestId last = e.submit({.number = 4, .prompt = {4}, .max_tokens = 2});
  EXPECT_EQ(e.waiting(), 4);
  results.step();
  EXPECT_EQ(e.running(), 2);
  EXPECT_EQ(e.waiting(), 2);
  while (!results.finished(next)) {
    results.step();
    EXPECT_TRUE(results.of(last).tokens.empty() || results.finished(next));
  }
  EXPECT_TRUE(results.finished(brief));
  EXPECT_FALSE(results.finished(lasting));
  results.run();
  EXPECT_TRUE(results.finished(lasting));
  EXPECT_TRUE(results.finished(last));
}

// After waiting for 256 passes, a request ranks like a new one of the next higher priority.
TEST_P(Engines, ALowerPriorityGoesFirstButForThoseThatWaitLong) {
  Engine e = engine(1);
  Results results(e);
  const auto submit = [&](int64_t priority) {
    return e.submit({.prompt = {1}, .max_tokens = 60, .priority = priority});
  };
  const RequestId last = submit(1), second = submit(0), third = submit(0), first = submit(-100);
  const auto expect_next = [&](RequestId next, std::initializer_list<RequestId> others) {
    while (!results.finished(next)) results.step();
    for (const RequestId other : others) EXPECT_TRUE(results.of(other).tokens.empty()) << other;
  };
  expect_next(first, {second, third, last});
  expect_next(second, {third, last});
  expect_next(third, {last});
  while (e.statistics().steps < 257) expect_next(submit(-1), {last});
  const RequestId later = submit(0);
  expect_next(last, {later});
}

TEST_P(Engines, CancelFreesThePlaceAndEndsTheUpdates) {
  Engine e = engine(1);
  Results results(e);
  const RequestId runs = e.submit(request(5)), waits = e.submit(request(6)),
                  next = e.submit(request(7));
  while (results.of(runs).tokens.empty()) results.step();
  EXPECT_TRUE(e.cancel(runs));
  EXPECT_TRUE(e.cancel(waits));
  EXPECT_EQ(e.running(), 0);
  EXPECT_EQ(e.waiting(), 1);
  EXPECT_FALSE(e.cancel(runs)) << "twice";
  EXPECT_FALSE(e.cancel(0));
  EXPECT_FALSE(e.cancel(99));
  results.run();
  EXPECT_EQ(results.of(runs).tokens.size(), 1u);
  EXPECT_TRUE(results.of(waits).tokens.empty());
  EXPECT_EQ(numbers_of(results.of(next)), alone(request(7)));
  EXPECT_FALSE(e.cancel(next)) << "it has finished";
  EXPECT_TRUE(e.step().empty()) << "idle";
}

// Cancels in the middle of a long prompt too.
TEST_P(Engines, CancelledWhileItsPromptIsRead) {
  Engine e = engine(2, 4);
  Results results(e);
  const RequestId reads =
      e.submit({.number = 1, .prompt = random_tokens(40, kVocabulary, 1), .max_tokens = 4});
  const RequestId other = e.submit(request(3));
  results.step();
  EXPECT_TRUE(e.cancel(reads));
  const RequestId next = e.submit(request(4));
  results.run();
  EXPECT_EQ(numbers_of(results.of(other)), alone(request(3)));
  EXPECT_EQ(numbers_of(results.of(next)), alone(request(4)));
}

TEST_P(Engines, MemoryIsThatOfThePlacesAndIsGivenBack) {
  Arena& arena = m_.runtime.arena(MemoryClass::activations);
  const int64_t before = arena.in_use();
  {
    Engine e = engine(2);
    const int64_t cache = arena.in_use();
    EXPECT_GT(cache, before);
    for (uint64_t n = 0; n < 12; ++n) {
      const RequestId id = e.submit(request(n));
      for (uint64_t s = 0; s < n % 4; ++s) e.step();
      if (n % 2 == 0) e.cancel(id);
      EXPECT_EQ(arena.in_use(), cache);
    }
    while (!e.idle()) e.step();
    EXPECT_EQ(arena.in_use(), cache);
  }
  EXPECT_EQ(arena.in_use(), before);
}

TEST_P(Engines, RefusesWhatAPlaceCannotHold) {
  Engine e(m_.model, m_.runtime, {.max_requests = 2, .max_length = 10});
  const RequestId fits = e.submit({.prompt = {1, 2, 3, 4}, .max_tokens = 6});
  try {
    e.submit({.number = 3, .prompt = {1, 2, 3, 4}, .max_tokens = 7});
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "request 3 may grow to 11 tokens (a prompt of 4 and --max-tokens 7), but the KV "
                 "cache has room for 10 per request; shorten the prompt or lower --max-tokens");
  }
  EXPECT_THROW(e.submit({.prompt = {97}}), Error);
  EXPECT_EQ(e.waiting(), 1) << "a refused request leaves nothing";
  Results results(e);
  results.run();
  EXPECT_EQ(results.of(fits).tokens.size(), 6u);
  EXPECT_THROW(Engine(m_.model, m_.runtime, {.max_length = -1}), Error);
  EXPECT_THROW(Engine(m_.model, m_.runtime, {.vocabulary = -1}), Error);
}

INSTANTIATE_TEST_SUITE_P(All, Engines, ::testing::Bool());

}  // namespace
}  // namespace megatron::testing
