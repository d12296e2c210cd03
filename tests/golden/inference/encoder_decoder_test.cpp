// Texts of encoder-decoders, compared with transformers' and, bit for bit, with one forward pass
// over both texts.
#include <random>

#include "base/error.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "golden/inference/shared_requests.h"
#include "models/adapters/lora_config.h"
#include "text.h"
#include "unit/models/family_models.h"

namespace megatron::testing {
namespace {

using inference::Engine;
using inference::Finish;
using inference::Generation;
using inference::Request;

// Widely spread initial values, so that the logits differ.
models::Model translator(const std::string& family) {
  Json config = family_config(family);
  config.set("initializer_factor", 12.0);
  return models::model_from_config_json(config);
}

Tokens given_and(const models::Model& model, const Tokens& text) {
  Tokens all = {static_cast<int32_t>(model->facts().start_token)};
  all.insert(all.end(), text.begin(), text.end());
  return all;
}

// Log-probability of each token of a text, by one forward pass without a cache.
std::vector<double> uncached(RandomModel& m, const Tokens& source, const Tokens& text) {
  const nn::Batch texts = whole_batch(m, {source});
  nn::Batch batch = whole_batch(m, {given_and(m.model.model(), text)});
  batch.encoder = &texts;
  Tape tape(m.runtime, Tape::Mode::infer);
  const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
  std::vector<double> values;
  for (const float loss : to_floats(models::head_loss(m.model, tape, out, batch)))
    values.push_back(0.0 - loss);
  values.pop_back();  // behind the last token
  return values;
}

std::vector<double> log_probabilities(const Generation& g) {
  std::vector<double> all;
  for (const auto& token : g.tokens) all.push_back(token.draw.log_probability);
  return all;
}

// Some prompts are those of others.
Request translation(uint64_t number, int64_t vocabulary = 96) {
  const uint64_t text = number % 7;
  return {.number = number,
          .prompt = random_tokens(1 + static_cast<int64_t>(text) * 23, vocabulary, text),
          .max_tokens = 1 + static_cast<int64_t>(number * 37 % 120),
          .sampling = {.temperature = 0.9, .top_k = 40, .seed = 3},
          .end_tokens = {5},
          .logprobs = static_cast<int64_t>(number % 4) - 1};
}

class Translators : public ::testing::TestWithParam<const char*> {};

TEST_P(Translators, WriteTheTokensOfTransformers) {
  const std::string path = family_directory(GetParam());
  const checkpoint::ModelDirectory directory(path);
  checkpoint::SafetensorsFile expected(path + "/expected.safetensors");
  RandomModel m(models::model_of(directory), DType::f32);
  checkpoint::load(directory, models::tensors_of(m.model));
  Request request{.prompt = {}, .max_tokens = 12, .sampling = {.temperature = 0}};
  const std::vector<int64_t> ids = expected.integers("input_ids"),
                             shown = expected.integers("attention_mask");
  const auto length = static_cast<size_t>(expected.find("input_ids")->shape[1]);
  for (size_t t = 0; t < length && shown[t] != 0; ++t)
    request.prompt.push_back(static_cast<int32_t>(ids[t]));
  const Tokens found =
      tokens_of(inference::generate(m.model, m.runtime, std::span(&request, 1), {})[0]);
  const std::vector<int64_t> greedy = expected.integers("greedy");
  EXPECT_EQ(found, Tokens(greedy.begin(), greedy.end()));
}

TEST_P(Translators, ComputeTheBitsOfAPassWithoutACache) {
  for (const DType type : {DType::f32, DType::bf16}) {
    RandomModel m(translator(GetParam()), type);
    std::vector<Request> requests;
    for (uint64_t n = 0; n < 9; ++n) requests.push_back(translation(n));
    const auto results =
        inference::generate(m.model, m.runtime, requests, {.max_requests = 4, .max_tokens = 60});
    size_t compared = 0;
    for (size_t n = 0; n < requests.size(); ++n) {
      const Tokens text = tokens_of(results[n]);
      EXPECT_EQ(log_probabilities(results[n]), uncached(m, requests[n].prompt, text)) << n;
      compared += text.size();
    }
    EXPECT_GT(compared, 100u);
  }
}

// Requests come at random moments into a cache that is too small for all, some texts of the encoder
// are longer than a pass, and some requests are cancelled.
TEST_P(Translators, GiveARequestWhatItGetsAlone) {
  RandomModel m(translator(GetParam()), DType::f32);
  constexpr uint64_t kRequests = 16;
  std::vector<std::vector<double>> expected;
  for (uint64_t n = 0; n < kRequests; ++n) {
    const Request r = translation(n);
    expected.push_back(
        numbers_of(inference::generate(m.model, m.runtime, std::span(&r, 1), {})[0]));
  }
  int64_t preemptions = 0;
  for (const uint64_t seed : {1, 2}) {
    std::mt19937_64 random(seed);
    std::vector<uint64_t> order(kRequests);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    Engine e(m.model, m.runtime,
             {.max_requests = 6,
              .max_tokens = seed == 1 ? 40 : 100,
              .max_length = 160,
              .block_size = 32,
              .cache_bytes = bytes_of_blocks(m, seed == 1 ? 7 : 5, 32)});
    Results results;
    std::map<uint64_t, inference::RequestId> ids;
    for (const uint64_t number : order) {
      ids[number] = e.submit(translation(number));
      const inference::RequestId cancelled = e.submit(translation(number + 1000));
      for (uint64_t s = random() % 3; s > 0; --s) take(e.step(), results);
      e.cancel(cancelled);
    }
    while (!e.idle()) take(e.step(), results);
    for (uint64_t n = 0; n < kRequests; ++n)
      EXPECT_EQ(numbers_of(results[ids[n]]), expected[n]) << "request " << n << ", seed " << seed;
    preemptions += e.statistics().preemptions;
    EXPECT_EQ(e.cache_use().used, 0);
  }
  EXPECT_GT(preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, Translators, ::testing::ValuesIn(kEncoderDecoderDirectories),
                         [](const auto& info) { return std::string(info.param); });

class Translator : public ::testing::Test {
 protected:
  RandomModel m_{translator("t5"), DType::f32};
};

// Texts of one prompt read it once, and hold its pages together.
TEST_F(Translator, ReadsAPromptOnceForAllOfItsTexts) {
  Engine e(m_.model, m_.runtime, {.max_requests = 8, .max_length = 128, .block_size = 32});
  Request request = translation(4);  // 93 tokens
  request.max_tokens = 20;
  request.end_tokens = {};
  Results results;
  for (request.number = 0; request.number < 4; ++request.number) e.submit(request);
  take(e.step(), results);
  EXPECT_EQ(e.statistics().prompt_tokens, 93);
  EXPECT_EQ(e.cache_use().used, 3 + 4);
  for (request.number = 4; request.number < 6; ++request.number) e.submit(request);
  while (!e.idle()) take(e.step(), results);
  EXPECT_EQ(e.statistics().prompt_tokens, 93);
  EXPECT_EQ(e.cache_use().used, 0);
  for (request.number = 0; request.number < 6; ++request.number)
    EXPECT_EQ(numbers_of(results[request.number + 1]),
              numbers_of(inference::generate(m_.model, m_.runtime, std::span(&request, 1), {})[0]));
  EXPECT_NE(tokens_of(results[1]), tokens_of(results[2]));
}

// A text of more tokens than a pass takes does not hold up others for more than a pass.
TEST_F(Translator, AlternatesLongTextsWithTheTokensOfOthers) {
  Engine e(m_.model, m_.runtime, {.max_requests = 8, .max_tokens = 32, .max_length = 160});
  Request request{.prompt = {1, 2, 3}, .max_tokens = 40, .sampling = {.temperature = 0}};
  Results results;
  const inference::RequestId first = e.submit(request);
  take(e.step(), results);
  request.prompt = random_tokens(150, 96, 1);
  const inference::RequestId second = e.submit(request);
  request.prompt = random_tokens(140, 96, 2);
  const inference::RequestId third = e.submit(request);
  const auto count = [&](inference::RequestId id) { return results[id].tokens.size(); };
  take(e.step(), results);
  EXPECT_EQ(count(first), 1u);
  EXPECT_EQ(count(second), 1u);
  take(e.step(), results);
  EXPECT_EQ(count(first), 2u);
  EXPECT_EQ(count(third), 0u);
  take(e.step(), results);
  EXPECT_EQ(count(third), 1u);
  EXPECT_EQ(count(first), 2u);
  take(e.step(), results);
  EXPECT_EQ(count(first), 3u);
}

TEST_F(Translator, ReadsAgainWhatChangedWeightsNoLongerFit) {
  Engine e(m_.model, m_.runtime, {.max_requests = 2, .max_length = 128});
  Request request = translation(3);
  request.max_tokens = 10;
  request.end_tokens = {};
  Results results;
  const inference::RequestId id = e.submit(request);
  while (results[id].tokens.size() < 4) take(e.step(), results);
  models::initialize(m_.model, 8, m_.runtime.stream());
  e.weights_changed();
  while (!e.idle()) take(e.step(), results);
  const std::vector<double> found = log_probabilities(results[id]),
                            now = uncached(m_, request.prompt, tokens_of(results[id]));
  ASSERT_EQ(found.size(), 10u);
  EXPECT_EQ(std::vector(found.begin() + 4, found.end()), std::vector(now.begin() + 4, now.end()));
  EXPECT_NE(found[0], now[0]);
}

// Beams hold the pages of their prompt together, and have the bits of passes without a cache, also
// after preemptions.
TEST_F(Translator, SearchesWithBeamsOverOnePrompt) {
  std::vector<Request> requests;
  for (uint64_t n = 0; n < 5; ++n) {
    Request& request = requests.emplace_back(translation(n));
    request.sampling = {};
    request.max_tokens = 40;
    request.beams = inference::BeamOptions{.beams = 3, .returned = 3};
  }
  for (const int64_t blocks : {40, 12}) {
    Engine e(m_.model, m_.runtime,
             {.max_requests = 6,
              .max_tokens = 60,
              .max_length = 96,
              .block_size = 32,
              .cache_bytes = bytes_of_blocks(m_, blocks, 32)});
    std::map<inference::RequestId, size_t> number;
    for (size_t n = 0; n < requests.size(); ++n) number[e.submit(requests[n])] = n;
    int64_t found = 0;
    while (!e.idle()) {
      for (const inference::RequestUpdate& update : e.step()) {
        const Request& request = requests[number.at(update.id)];
        for (const inference::BeamResult& beam : update.beams) {
          Tokens text;
          std::vector<double> values;
          for (const auto& token : beam.tokens) {
            text.push_back(token.draw.token);
            values.push_back(token.draw.log_probability);
          }
          EXPECT_EQ(values, uncached(m_, request.prompt, text));
          ++found;
        }
      }
    }
    EXPECT_EQ(found, 15);
    if (blocks == 40) {
      EXPECT_EQ(e.statistics().prompt_tokens, 1 + 24 + 47 + 70 + 93);
    }
    EXPECT_EQ(e.cache_use().used, 0);
  }
}

// The adapter of a request acts on the encoder's layers and on cross attention, too.
TEST_F(Translator, ReadsEachPromptWithItsAdapter) {
  const models::Model base = m_.model.model();
  const auto adapter_of = [&](uint64_t seed) {
    models::LoraConfig config;
    config.rank = 4;
    config.alpha = 16;
    config.init = models::LoraInit::random;
    config.all_linear = true;
    auto adapter = std::make_shared<inference::Adapter>(
        base->with({.adapter = std::make_shared<const models::LoraConfig>(std::move(config))}),
        std::make_shared<Runtime>(Device{DeviceKind::cpu, 0}, 1), DType::f32,
        inference::Adapter::next_number());
    for (parallel::ParameterSpec* tensor : adapter->tensors())
      parallel::initialize(*tensor, seed, adapter->runtime().stream());
    return adapter;
  };
  const auto first = adapter_of(1), second = adapter_of(2);
  ASSERT_TRUE(first->shares_passes());
  std::vector<Request> requests;
  for (uint64_t n = 0; n < 12; ++n) {
    Request& request = requests.emplace_back(translation(n / 3 + 1));
    request.number = n;
    request.max_tokens = 12;
    request.adapter = n % 3 == 0 ? nullptr : n % 3 == 1 ? first : second;
  }
  const auto alone = [&](const Request& request) {
    return inference::generate(m_.model, m_.runtime, std::span(&request, 1), {})[0];
  };
  const auto together =
      inference::generate(m_.model, m_.runtime, requests, {.max_requests = 5, .max_tokens = 90});
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(numbers_of(together[i]), numbers_of(alone(requests[i]))) << i;
  // As a model that has the adapter.
  Request request = requests[1];
  request.adapter = nullptr;
  const auto own = first->over(m_.model, m_.runtime, {});
  const Generation as_model = inference::generate(*own, m_.runtime, std::span(&request, 1), {})[0];
  EXPECT_EQ(numbers_of(as_model), numbers_of(together[1]));
  EXPECT_NE(log_probabilities(as_model), log_probabilities(alone(request)));
}

TEST_F(Translator, RefusesWhatItsPromptCannotGive) {
  Engine e(m_.model, m_.runtime, {.max_length = 64});
  const auto refused = [&](const Request& request) { return error_of([&] { e.submit(request); }); };
  EXPECT_EQ(refused({.prompt = {1}, .max_tokens = 4}), "");
  expect_contains(refused({.prompt = {1}, .max_tokens = 0}), {"nothing but a text"});
  expect_contains(
      refused({.prompt = {1}, .max_tokens = 4, .logprobs = 0, .prompt_alternatives = 1}),
      {"log-probabilities of its prompt"});
  expect_contains(refused({.prompt = Tokens(65, 1), .max_tokens = 4}), {"65 tokens", "64"});
  expect_contains(refused({.prompt = {1}, .max_tokens = 64}), {"65 tokens", "64"});
  EXPECT_THROW(e.embedding(Tokens{1, 2}), Error);
}

}  // namespace
}  // namespace megatron::testing
