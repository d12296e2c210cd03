// Requests with adapters of a model that is divided among ranks.
#include "dist/inference/divided_engine.h"
#include "models/adapters/lora_config.h"

namespace megatron::testing {
namespace {

using inference::Adapter;
using inference::AdaptersByNumber;
using Configs = std::vector<std::shared_ptr<const models::LoraConfig>>;

std::shared_ptr<const models::LoraConfig> lora(std::vector<std::string> targets,
                                               std::vector<std::string> saved = {},
                                               bool decomposed = false) {
  models::LoraConfig config;
  config.rank = 3;
  config.alpha = 6;
  config.init = models::LoraInit::random;
  config.all_linear = targets.empty();
  config.targets.names = std::move(targets);
  config.modules_to_save = std::move(saved);
  config.weight_decomposed = decomposed;
  return std::make_shared<const models::LoraConfig>(std::move(config));
}

// Adapter i has the number i + 1 on all ranks.
std::vector<std::shared_ptr<const Adapter>> make_adapters(const models::Model& base, DType type,
                                                          const Configs& configs,
                                                          const inference::EngineGroups* groups) {
  std::vector<std::shared_ptr<const Adapter>> adapters;
  for (const auto& config : configs) {
    const uint64_t number = adapters.size() + 1;
    const auto adapter = std::make_shared<Adapter>(
        base->with({.adapter = config}), std::make_shared<Runtime>(Device{DeviceKind::cpu, 0}, 1),
        type, number, groups);
    for (parallel::ParameterSpec* tensor : adapter->tensors())
      parallel::initialize(*tensor, 20 + number, adapter->runtime().stream());
    adapters.push_back(adapter);
  }
  return adapters;
}

// Request n has adapter n modulo their number + 1; 0: none.
std::vector<Request> adapted_requests(const std::vector<std::shared_ptr<const Adapter>>& adapters) {
  std::vector<Request> requests;
  for (uint64_t n = 0; n < 15; ++n) {
    requests.push_back(divided_request(n, 0));
    requests.back().logprobs = 2;
    if (const size_t which = n % (adapters.size() + 1); which > 0)
      requests.back().adapter = adapters[which - 1];
  }
  return requests;
}

struct Answers {
  std::vector<Generation> together;
  std::vector<Generation> alone;               // of the first requests: one with each adapter
  std::vector<std::vector<float>> embeddings;  // with each adapter, and without
};

Answers answers_of(const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks,
                   const std::vector<std::shared_ptr<const Adapter>>& adapters) {
  const std::vector<Request> requests = adapted_requests(adapters);
  const EngineOptions options{.max_requests = 12, .max_tokens = 40, .block_size = 32};
  Answers answers;
  {
    Engine engine(stage, runtime, options, ranks);
    Results results;
    std::vector<RequestId> ids;
    for (const Request& request : requests) {
      ids.push_back(engine.submit(request));
      engine.cancel(engine.submit(request));
    }
    while (!engine.idle()) take(engine.step(), results);
    for (const RequestId id : ids) answers.together.push_back(results[id]);
    const Tokens text = random_tokens(20, kDividedVocabulary, 5);
    answers.embeddings.push_back(engine.embedding(text));
    for (const auto& adapter : adapters)
      answers.embeddings.push_back(engine.embedding(text, adapter.get()));
  }
  for (size_t i = 0; i <= adapters.size(); ++i) {
    Engine engine(stage, runtime, options, ranks);
    Results results;
    const RequestId id = engine.submit(requests[i]);
    while (!engine.idle()) take(engine.step(), results);
    answers.alone.push_back(results[id]);
  }
  return answers;
}

Answers divided_answers(const RandomModel& m, const Division& d, const Configs& configs) {
  Answers answers;
  each_rank(d.tensor * d.stages, DeviceKind::cpu, [&](comm::Group& world, Runtime& runtime) {
    const inference::EngineGroups groups(
        {.tensor = d.tensor, .stages = d.stages, .experts = d.experts}, world);
    const models::Model& model = m.model.model();
    const auto stage = groups.build(model, runtime, m.type(), 1);
    models::initialize(*stage, 7, runtime.stream());
    const auto adapters = make_adapters(model, m.type(), configs, &groups);
    AdaptersByNumber by_number;
    for (const auto& adapter : adapters) by_number.add(adapter);
    EngineRanks ranks = groups.ranks(true);
    ranks.adapters = &by_number;
    if (!ranks.draws()) return inference::follow(*stage, runtime, ranks);
    const inference::Followers followers(ranks);
    answers = answers_of(*stage, runtime, ranks, adapters);
  });
  return answers;
}

void expect_each_as_alone(const Answers& answers) {
  for (size_t i = 0; i < answers.alone.size(); ++i)
    EXPECT_EQ(numbers_of(answers.together[i]), numbers_of(answers.alone[i])) << i;
}

// Dense layers, with adapters that share passes (the first two) and others.
Configs dense_configs() {
  return {lora({}), lora({"q_proj", "down_proj"}), lora({"v_proj"}, {"lm_head", "embed_tokens"}),
          lora({"o_proj", "up_proj"}, {}, true)};
}

models::ModelFlags dense_shape() {
  return llama_shape(3, 32, 4, 2, kDividedVocabulary, kDividedPositions);
}

TEST(DividedAdapters, OfPipelinesGiveTheBitsOfOneRank) {
  RandomModel m(dense_shape(), DType::f32);
  const Answers expected = answers_of(
      m.model, m.runtime, {}, make_adapters(m.model.model(), m.type(), dense_configs(), nullptr));
  const Answers found = divided_answers(m, {.stages = 3}, dense_configs());
  expect_each_as_alone(found);
  for (size_t i = 0; i < expected.together.size(); ++i)
    EXPECT_EQ(numbers_of(found.together[i]), numbers_of(expected.together[i])) << i;
  EXPECT_EQ(found.embeddings, expected.embeddings);
  EXPECT_NE(found.embeddings[1], found.embeddings[0]);
}

TEST(DividedAdapters, OfTensorParallelRanksAreThemselvesWithAnyNeighbours) {
  RandomModel m(dense_shape(), DType::f32);
  const Answers expected = answers_of(
      m.model, m.runtime, {}, make_adapters(m.model.model(), m.type(), dense_configs(), nullptr));
  for (const Division& d : {Division{.tensor = 2}, Division{.tensor = 2, .stages = 2}}) {
    SCOPED_TRACE(fmt::format("tensor {}, stages {}", d.tensor, d.stages));
    const Answers found = divided_answers(m, d, dense_configs());
    expect_each_as_alone(found);
    expect_near(found.together, expected.together);
  }
}

TEST(DividedAdapters, OfExpertsAreThemselvesWithAnyNeighbours) {
  models::ModelFlags flags = dense_shape();
  flags.moe.num_experts = 4;
  RandomModel m(flags, DType::f32);
  const Configs configs = {lora({}), lora({"q_proj"})};
  const Answers expected = answers_of(m.model, m.runtime, {},
                                      make_adapters(m.model.model(), m.type(), configs, nullptr));
  for (const Division& d :
       {Division{.tensor = 2, .stages = 2, .experts = 2}, Division{.tensor = 2}}) {
    SCOPED_TRACE(fmt::format("tensor {}, stages {}, experts {}", d.tensor, d.stages, d.experts));
    const Answers found = divided_answers(m, d, configs);
    expect_each_as_alone(found);
    expect_near(found.together, expected.together);
  }
}

}  // namespace
}  // namespace megatron::testing
