// Requests with different adapters of one model share an engine, and do not affect each other.
#include <map>

#include "base/error.h"
#include "golden/inference/losses.h"
#include "inference/engine.h"
#include "models/adapters/lora_config.h"

namespace megatron::testing {
namespace {

using inference::Adapter;
using inference::Request;

constexpr int64_t kAdaptedTokens = 97, kAdaptedPositions = 320;

std::shared_ptr<const models::LoraConfig> config(int64_t rank, std::vector<std::string> targets) {
  models::LoraConfig config;
  config.rank = rank;
  config.alpha = static_cast<double>(4 * rank);
  config.init = models::LoraInit::random;
  config.all_linear = targets.empty();
  config.targets.names = std::move(targets);
  return std::make_shared<const models::LoraConfig>(std::move(config));
}

models::Model base_model(bool llama) {
  models::ModelFlags flags = llama ? llama_shape(2, 64, 8, 2, kAdaptedTokens, kAdaptedPositions)
                                   : gpt2_shape(2, 64, 4, kAdaptedTokens, kAdaptedPositions);
  flags.init_method_std = 0.3;
  return models::model_from_flags(flags, 0);
}

// seed: RandomModel fills its model from seed 7.
std::shared_ptr<const Adapter> adapter_of(const models::Model& base,
                                          std::shared_ptr<const models::LoraConfig> config,
                                          DType type, uint64_t seed) {
  auto adapter = std::make_shared<Adapter>(base->with({.adapter = std::move(config)}),
                                           Device{DeviceKind::cpu, 0}, type);
  for (parallel::ParameterSpec* tensor : adapter->tensors())
    parallel::initialize(*tensor, seed, adapter->runtime().stream());
  return adapter;
}

Request request(int64_t length, uint64_t number, std::shared_ptr<const Adapter> adapter) {
  return {.number = number,
          .prompt = random_tokens(length, kAdaptedTokens, number),
          .max_tokens = 9,
          .sampling = {.temperature = 0.9, .seed = 3},
          .logprobs = 2,
          .adapter = std::move(adapter)};
}

std::vector<double> alone(RandomModel& m, const Request& request) {
  return numbers_of(inference::generate(m.model, m.runtime, std::span(&request, 1), {})[0]);
}

void expect_each_as_alone(RandomModel& m, const std::vector<Request>& requests) {
  const auto together =
      inference::generate(m.model, m.runtime, requests, {.max_requests = 5, .max_tokens = 40});
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(numbers_of(together[i]), alone(m, requests[i])) << i;
}

TEST(Adapters, TextsDoNotDependOnTheirNeighbours) {
  for (const bool llama : {true, false})
    for (const DType type : {DType::f32, DType::bf16}) {
      const models::Model base = base_model(llama);
      RandomModel m(base, type);
      const auto all = adapter_of(base, config(4, {}), type, 1),
                 two = adapter_of(base, config(3, {llama ? "q_proj" : "c_fc"}), type, 2);
      std::vector<Request> requests;
      for (uint64_t n = 0; n < 12; ++n)
        requests.push_back(request(1 + static_cast<int64_t>(n * 17 % 70), n,
                                   n % 3 == 0   ? nullptr
                                   : n % 3 == 1 ? all
                                                : two));
      expect_each_as_alone(m, requests);
      // The adapters have an effect.
      Request other = requests[1];
      other.adapter = nullptr;
      EXPECT_NE(alone(m, other), alone(m, requests[1]));
      other.adapter = two;
      EXPECT_NE(alone(m, other), alone(m, requests[1]));
    }
}

TEST(Adapters, AreAsInAModelOfTheirOwn) {
  constexpr uint64_t kSeed = 7;  // of RandomModel
  for (const bool llama : {true, false})
    for (const DType type : {DType::f32, DType::bf16}) {
      const models::Model base = base_model(llama);
      const auto lora = config(4, {});
      RandomModel m(base, type), own(base->with({.adapter = lora}), type);
      const Request with_adapter = request(65, 5, adapter_of(base, lora, type, kSeed)),
                    without = request(65, 5, nullptr);
      EXPECT_EQ(alone(m, with_adapter), alone(own, without));
    }
}

// The same prompt has other keys and values with each adapter.
TEST(Adapters, ShareNoCachedTokens) {
  const models::Model base = base_model(true);
  RandomModel m(base, DType::f32);
  const auto adapter = adapter_of(base, config(4, {}), DType::f32, 1);
  inference::Engine engine(m.model, m.runtime, {});
  const auto run = [&](const std::shared_ptr<const Adapter>& of) {
    Request r = request(200, 1, of);
    r.logprobs = -1;
    Tokens tokens;
    engine.submit(r);
    while (!engine.idle())
      for (const inference::RequestUpdate& update : engine.step())
        for (const auto& token : update.tokens) tokens.push_back(token.draw.token);
    return tokens;
  };
  const Tokens prompt = request(200, 1, nullptr).prompt;
  const Tokens plain = run(nullptr);
  EXPECT_EQ(engine.cached_tokens(prompt), 192);
  EXPECT_EQ(engine.cached_tokens(prompt, adapter->number()), 0);
  const Tokens adapted = run(adapter);
  EXPECT_EQ(engine.cached_tokens(prompt, adapter->number()), 192);
  EXPECT_EQ(run(nullptr), plain);
  EXPECT_EQ(run(adapter), adapted);
  EXPECT_NE(adapted, plain);
  EXPECT_NE(engine.embedding(prompt, adapter.get()), engine.embedding(prompt));
}

TEST(Adapters, WhatOneModelCannotShareIsRefused) {
  const models::Model base = base_model(true);
  const auto error = [&](const models::LoraConfig& refused) -> std::string {
    try {
      adapter_of(base, std::make_shared<const models::LoraConfig>(refused), DType::f32, 1);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  models::LoraConfig saved = *config(4, {"q_proj"});
  saved.modules_to_save = {"lm_head"};
  EXPECT_NE(error(saved).find("modules_to_save"), std::string::npos) << error(saved);
  models::LoraConfig table = *config(4, {"q_proj", "embed_tokens"});
  EXPECT_NE(error(table).find("embedding"), std::string::npos) << error(table);
}

}  // namespace
}  // namespace megatron::testing
