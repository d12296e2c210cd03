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

// Vectors, whose initial values are equal, get others than the base's.
void fill(parallel::ParameterSpec& tensor, uint64_t seed, Stream& stream) {
  parallel::initialize(tensor, seed, stream);
  const Tensor& value = tensor.parameter.value;
  if (value.rank() == 1) kernels::table(stream).fill({.out = value, .value = 0.3}, stream);
}

// seed: RandomModel fills its model from seed 7.
std::shared_ptr<const Adapter> adapter_of(const models::Model& base,
                                          std::shared_ptr<const models::LoraConfig> config,
                                          DType type, uint64_t seed) {
  auto adapter = std::make_shared<Adapter>(base->with({.adapter = std::move(config)}),
                                           std::make_shared<Runtime>(Device{DeviceKind::cpu, 0}, 1),
                                           type, Adapter::next_number());
  for (parallel::ParameterSpec* tensor : adapter->tensors())
    fill(*tensor, seed, adapter->runtime().stream());
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

// Adapters of experts, or those that need passes of their own.
std::vector<std::shared_ptr<const models::LoraConfig>> other_configs(bool experts) {
  std::vector<models::LoraConfig> configs;
  if (experts) {
    configs.push_back(*config(3, {}));      // all matrices, those of experts, too
    configs.push_back(*config(5, {"w3"}));  // the up-projections of experts
  } else {
    configs.assign(5, *config(3, {"q_proj", "down_proj"}));
    configs[0].weight_decomposed = true;
    configs[1].modules_to_save = {"lm_head", "1.input_layernorm"};
    configs[2].bias = models::LoraBias::all;
    configs[3].targets.names.emplace_back("embed_tokens");
    configs[4].trainable_token_indices = {{"", {70, 3, 4, 5}}, {"lm_head", {11, 90}}};
  }
  std::vector<std::shared_ptr<const models::LoraConfig>> all;
  for (models::LoraConfig& one : configs)
    all.push_back(std::make_shared<const models::LoraConfig>(std::move(one)));
  return all;
}

TEST(Adapters, OfAllKindsAreAsInAModelOfTheirOwn) {
  for (const bool experts : {false, true})
    for (const DType type : {DType::f32, DType::bf16}) {
      models::ModelFlags flags = llama_shape(2, 64, 8, 2, kAdaptedTokens, kAdaptedPositions);
      flags.init_method_std = 0.3;
      flags.add_bias_linear = !experts;
      if (experts) flags.moe.num_experts = 4;
      const models::Model base = models::model_from_flags(flags, 0);
      RandomModel m(base, type);
      const auto plain = adapter_of(base, config(4, {"q_proj"}), type, 1);
      ASSERT_TRUE(plain->shares_passes());
      std::vector<Request> requests = {request(30, 0, nullptr), request(33, 1, plain)};
      std::vector<std::vector<double>> expected = {alone(m, requests[0]), alone(m, requests[1])};
      for (const auto& lora : other_configs(experts)) {
        // Other values than the base's in all that the adapter replaces.
        const auto adapter = adapter_of(base, lora, type, 9);
        EXPECT_EQ(adapter->shares_passes(), experts);
        RandomModel own(base->with({.adapter = lora}), type);
        for (parallel::ParameterSpec* tensor : own.model.parameters())
          if (tensor->parameter.trainable) fill(*tensor, 9, own.runtime.stream());
        requests.push_back(request(65, requests.size(), adapter));
        Request without = requests.back();
        without.adapter = nullptr;
        expected.push_back(alone(own, without));
        EXPECT_NE(expected.back(), alone(m, without));
      }
      const auto together =
          inference::generate(m.model, m.runtime, requests, {.max_requests = 6, .max_tokens = 40});
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(numbers_of(together[i]), expected[i]) << i;
    }
}

// Adapters of the queries share passes; those of the product that expands cached latents do not,
// and compute all keys and values again in absorbed form, too.
TEST(Adapters, OfLatentAttentionAreAsInAModelOfTheirOwn) {
  models::ModelFlags flags = llama_shape(2, 64, 8, 8, kAdaptedTokens, kAdaptedPositions);
  flags.init_method_std = 0.3;
  flags.group_query_attention = false;
  flags.add_bias_linear = false;
  flags.multi_latent_attention = true;
  flags.q_lora_rank = 24;
  flags.kv_lora_rank = 20;
  flags.qk_head_dim = flags.v_head_dim = 12;
  flags.qk_pos_emb_head_dim = 8;
  flags.model_family = "megatron";
  const models::Model base = models::model_from_flags(flags, 0);
  const inference::EngineOptions absorbed{
      .max_requests = 3, .max_tokens = 40, .latent_decode = inference::LatentDecode::absorbed};
  RandomModel m(base, DType::f32);
  for (const char* target : {"q_down", "kv_up"}) {
    const auto lora = config(4, {target});
    const auto adapter = adapter_of(base, lora, DType::f32, 9);
    EXPECT_EQ(adapter->shares_passes(), std::string(target) == "q_down");
    RandomModel own(base->with({.adapter = lora}), DType::f32);
    for (parallel::ParameterSpec* tensor : own.model.parameters())
      if (tensor->parameter.trainable) fill(*tensor, 9, own.runtime.stream());
    const std::vector<Request> requests = {request(30, 0, nullptr), request(65, 1, adapter)};
    Request without = requests[1];
    without.adapter = nullptr;
    const auto of = [&](RandomModel& model, std::span<const Request> some) {
      return inference::generate(model.model, model.runtime, some, absorbed);
    };
    const auto together = of(m, requests);
    EXPECT_EQ(numbers_of(together[0]), numbers_of(of(m, std::span(&requests[0], 1))[0]));
    EXPECT_EQ(numbers_of(together[1]), numbers_of(of(own, std::span(&without, 1))[0])) << target;
    EXPECT_NE(numbers_of(together[1]), numbers_of(of(m, std::span(&without, 1))[0]));
  }
}

// What was reserved is used again, and no more than that.
TEST(Adapters, HaveTheirMemoryReserved) {
  const models::Model base = base_model(true), model = base->with({.adapter = config(4, {})});
  const int64_t bytes = inference::adapter_bytes(model, DType::bf16);
  inference::AdapterMemory memory({DeviceKind::cpu, 0}, 2, bytes);
  const auto load = [&] {
    return std::make_shared<const Adapter>(model, memory.take(), DType::bf16,
                                           Adapter::next_number());
  };
  auto one = load();
  const auto two = load();
  EXPECT_LE(one->bytes(), bytes);
  EXPECT_GT(one->bytes(), bytes - bytes / 8);  // tensors are aligned
  EXPECT_EQ(memory.take(), nullptr);
  one = nullptr;
  EXPECT_NE(load(), nullptr);
  EXPECT_NE(memory.take(), nullptr);
}

}  // namespace
}  // namespace megatron::testing
