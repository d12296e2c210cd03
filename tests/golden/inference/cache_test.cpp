// Requests share pages, wait for pages and return them.
#include "base/error.h"
#include "golden/inference/shared_requests.h"

namespace megatron::testing {
namespace {

using inference::Engine;
using inference::Generation;
using inference::Request;
using inference::RequestId;

TEST(SharedCache, GivesEachRequestWhatItGetsAlone) {
  RandomModel m(llama_shape(1, 32, 2, 1, kSharedVocabulary, kSharedPositions), DType::f32);
  expect_results_of_each_alone(m, 500);
}

TEST(SharedCache, InBf16AndWithWindowsToo) {
  models::ModelFlags flags = llama_shape(2, 32, 4, 2, kSharedVocabulary, kSharedPositions);
  flags.window_size = "39,0";
  flags.window_attn_skip_freq = "2";
  RandomModel m(flags, DType::bf16);
  expect_results_of_each_alone(m, 500, false);
}

// 100,000 random submissions and cancellations; the model has one layer and runs few passes.
TEST(SharedCache, LeaksNoBlock) {
  RandomModel m(llama_shape(1, 32, 1, 1, kSharedVocabulary, kSharedPositions), DType::f32);
  Engine e(m.model, m.runtime,
           {.max_requests = 4,
            .max_tokens = 64,
            .block_size = 32,
            .cache_bytes = bytes_of_blocks(m, 10, 32)});
  std::mt19937_64 random(5);
  std::vector<RequestId> ids;
  for (int i = 0; i < 100'000; ++i) {
    if (ids.size() < 20 && random() % 2 == 0) {
      ids.push_back(e.submit(shared_request(random() % 300)));
    } else if (!ids.empty()) {
      const auto at = ids.begin() + static_cast<std::ptrdiff_t>(random() % ids.size());
      e.cancel(*at);
      ids.erase(at);
    }
    if (i % 97 == 0) e.step();
  }
  for (const RequestId id : ids) e.cancel(id);
  EXPECT_TRUE(e.idle());
  EXPECT_EQ(e.cache_use().used, 0);
  EXPECT_LE(e.cache_use().found, e.cache_use().blocks);
}

// The pages of a text are reused by the next request, whose prompt is a few tokens longer.
TEST(SharedCache, ReadsOnlyWhatIsNew) {
  RandomModel m(llama_shape(1, 32, 2, 1, kSharedVocabulary, kSharedPositions), DType::f32);
  Engine e(m.model, m.runtime, {.max_requests = 2, .block_size = 32});
  std::map<RequestId, Generation> results;
  const Tokens prompt = random_tokens(200, kSharedVocabulary, 1);
  const RequestId first = e.submit({.prompt = prompt, .max_tokens = 1});
  while (!e.idle()) take(e.step(), results);
  EXPECT_EQ(e.statistics().prompt_tokens, 200);
  EXPECT_EQ(e.cached_tokens(prompt), 192);
  const RequestId again = e.submit({.prompt = prompt, .max_tokens = 1});
  while (!e.idle()) take(e.step(), results);
  EXPECT_EQ(e.statistics().prompt_tokens, 200 + 8);
  EXPECT_EQ(e.statistics().cached_tokens, 192);
  EXPECT_EQ(numbers_of(results[again]), numbers_of(results[first]));
  // A request for log-probabilities of the prompt reads all of it.
  e.submit({.prompt = prompt, .max_tokens = 1, .logprobs = 0});
  while (!e.idle()) take(e.step(), results);
  EXPECT_EQ(e.statistics().prompt_tokens, 200 + 8 + 200);
}

// Running requests continue while a long prompt is read.
TEST(SharedCache, ALongPromptDoesNotStopTheOthers) {
  RandomModel m(llama_shape(1, 32, 2, 1, kSharedVocabulary, kSharedPositions), DType::f32);
  Engine e(m.model, m.runtime, {.max_requests = 4, .max_tokens = 16});
  std::map<RequestId, Generation> results;
  const RequestId runs = e.submit({.prompt = {1, 2}, .max_tokens = 50});
  take(e.step(), results);
  const RequestId reads =
      e.submit({.prompt = random_tokens(100, kSharedVocabulary, 1), .max_tokens = 2});
  for (size_t step = 2; results[reads].tokens.empty(); ++step) {
    take(e.step(), results);
    EXPECT_EQ(results[runs].tokens.size(), step);
    ASSERT_LT(step, 20u);
  }
}

// Weights change while requests run: from then on requests get the results of a new engine, and
// tokens drawn before are kept.
TEST(SharedCache, IsReadAnewWithOtherWeights) {
  RandomModel m(llama_shape(1, 32, 2, 1, kSharedVocabulary, kSharedPositions), DType::f32);
  Engine e(m.model, m.runtime, {.max_requests = 2, .block_size = 32});
  std::map<RequestId, Generation> results;
  const RequestId id = e.submit({.prompt = random_tokens(70, kSharedVocabulary, 1),
                                 .max_tokens = 8,
                                 .sampling = {.temperature = 0}});
  for (int i = 0; i < 3; ++i) take(e.step(), results);
  models::initialize(m.model, 99, m.runtime.stream());
  e.weights_changed();
  while (!e.idle()) take(e.step(), results);
  Tokens text = random_tokens(70, kSharedVocabulary, 1);
  const Tokens all = tokens_of(results[id]);
  text.insert(text.end(), all.begin(), all.begin() + 3);
  const Request rest{.prompt = text, .max_tokens = 5, .sampling = {.temperature = 0}};
  EXPECT_EQ(tokens_of(inference::generate(m.model, m.runtime, std::span(&rest, 1), {})[0]),
            Tokens(all.begin() + 3, all.end()));
}

TEST(SharedCache, RefusesABudgetBelowOneText) {
  RandomModel m(llama_shape(1, 32, 2, 1, kSharedVocabulary, kSharedPositions), DType::f32);
  EXPECT_THROW(
      Engine(m.model, m.runtime, {.block_size = 32, .cache_bytes = bytes_of_blocks(m, 7, 32)}),
      Error);
  Engine e(m.model, m.runtime, {.block_size = 32, .cache_bytes = bytes_of_blocks(m, 8, 32)});
  EXPECT_EQ(e.cache_use().blocks, 8);
  EXPECT_THROW(Engine(m.model, m.runtime, {.block_size = 48}), Error);
}

}  // namespace
}  // namespace megatron::testing
