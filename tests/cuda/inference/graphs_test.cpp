// Passes with one token per text, launched as CUDA graphs, are bit-identical to eager passes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "base/json.h"
#include "comm/gpu/group.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "golden/inference/losses.h"
#include "inference/engine.h"
#include "inference/engine_groups.h"
#include "models/adapters/lora_config.h"

namespace megatron::testing {
namespace {

using inference::Engine;
using inference::EngineOptions;
using inference::EngineRanks;
using inference::Generation;
using inference::Request;
using inference::RequestId;
using inference::RequestUpdate;
using inference::Statistics;

// Set before the first call of CUDA.
[[maybe_unused]] const int kDevices = ::setenv("CUDA_SHIM_DEVICES", "2", 1);

constexpr int64_t kGraphVocabulary = 53;
using Numbers = std::map<RequestId, std::vector<double>>;

struct Outcome {
  Numbers numbers;  // per request
  Statistics statistics;
};

class Collected {
 public:
  void take(const std::vector<RequestUpdate>& updates) {
    for (const RequestUpdate& update : updates) {
      Generation& g = of_[update.id];
      std::ranges::copy(update.prompt_log_probabilities,
                        std::back_inserter(g.prompt_log_probabilities));
      std::ranges::copy(update.tokens, std::back_inserter(g.tokens));
      if (update.finish) g.finish = *update.finish;
    }
  }
  void finish(Engine& engine) {
    while (!engine.idle()) take(engine.step());
  }
  Outcome outcome(const Engine& engine) const {
    Outcome all{.numbers = {}, .statistics = engine.statistics()};
    for (const auto& [id, g] : of_) all.numbers[id] = numbers_of(g);
    return all;
  }

 private:
  std::map<RequestId, Generation> of_;
};

// Prompts of many lengths that share prefixes; sampled greedily, on the device, and on the host.
Request graph_request(uint64_t number) {
  Tokens prompt =
      random_tokens(static_cast<int64_t>(number * 29 % 70), kGraphVocabulary, number % 3);
  const Tokens own =
      random_tokens(1 + static_cast<int64_t>(number * 7 % 20), kGraphVocabulary, 90 + number);
  prompt.insert(prompt.end(), own.begin(), own.end());
  Request r{.number = number,
            .prompt = prompt,
            .max_tokens = 6 + static_cast<int64_t>(number % 13),
            .sampling = {.temperature = number % 2 == 0 ? 0.0 : 0.9, .top_k = 20, .seed = 3},
            .logprobs = number % 5 == 0 ? 2 : -1};
  if (number % 7 == 3) r.sampling.repetition_penalty = 1.4;
  return r;
}

// Submits texts at random moments and cancels some of them.
Outcome traffic(const models::Stage& stage, Runtime& runtime, EngineOptions options,
                const EngineRanks& ranks = {}) {
  std::mt19937_64 random(5);
  Engine engine(stage, runtime, options, ranks);
  Collected all;
  for (uint64_t number = 0; number < 10; ++number) {
    engine.submit(graph_request(number));
    const RequestId cancelled = engine.submit(graph_request(number + 1000));
    for (uint64_t steps = random() % 5; steps > 0; --steps) all.take(engine.step());
    engine.cancel(cancelled);
  }
  all.finish(engine);
  return all.outcome(engine);
}

models::ModelFlags windowed() {
  models::ModelFlags flags = llama_shape(2, 32, 4, 2, kGraphVocabulary, 128);
  flags.window_size = "39,0";
  flags.window_attn_skip_freq = "2";
  flags.init_method_std = 0.3;
  return flags;
}

std::unique_ptr<models::Stage> stage_of(const models::Model& model, Runtime& runtime, DType type) {
  auto stage = model.build(runtime, type, 1);
  models::initialize(*stage, 7, runtime.stream());
  return stage;
}

class DecodeGraphs : public ::testing::Test {
 protected:
  Runtime runtime_{{DeviceKind::cuda, 0}, 1};
};

class DecodeGraphsOfType : public DecodeGraphs, public ::testing::WithParamInterface<DType> {};

// The number of texts is not a power of two, so that most passes have rows of padding.
TEST_P(DecodeGraphsOfType, HaveTheBitsOfPassesWithoutThem) {
  const auto stage = stage_of(models::model_from_flags(windowed(), 0), runtime_, GetParam());
  EngineOptions options{.max_requests = 5, .max_tokens = 40, .block_size = 32};
  const Outcome graphs = traffic(*stage, runtime_, options);
  EXPECT_GT(graphs.statistics.graphs_recorded, 1);
  EXPECT_GT(graphs.statistics.graph_launches, 2 * graphs.statistics.graphs_recorded);
  EXPECT_GT(graphs.statistics.cached_tokens, 0);
  options.cuda_graphs = 0;
  const Outcome eager = traffic(*stage, runtime_, options);
  EXPECT_EQ(graphs.numbers, eager.numbers);
  EXPECT_EQ(eager.statistics.graph_launches, 0);
  EXPECT_EQ(eager.statistics.graphs_recorded, 0);
  EXPECT_EQ(eager.statistics.graph_bytes, 0);
  // On this device the bits of a row do not depend on the number of rows, so padding changes
  // nothing.
  for (const auto& [id, numbers] : graphs.numbers) {
    if (id % 2 == 0) continue;  // cancelled
    const Request alone = graph_request(id / 2);
    EXPECT_EQ(numbers,
              numbers_of(inference::generate(*stage, runtime_, std::span(&alone, 1), options)[0]))
        << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DecodeGraphsOfType, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name(info.param)); });

// The first pass of a shape runs eagerly, and the second is recorded.
TEST_F(DecodeGraphs, AreRecordedOnceAShape) {
  const auto stage = stage_of(models::model_from_flags(windowed(), 0), runtime_, DType::f32);
  Engine engine(*stage, runtime_, {.max_requests = 4, .max_tokens = 64});
  Collected all;
  const auto three_texts = [&](int64_t tokens) {
    for (uint64_t i = 0; i < 3; ++i)
      engine.submit({.number = i, .prompt = {1, 2, 3}, .max_tokens = tokens});
    all.finish(engine);
    return engine.statistics();
  };
  const Statistics first = three_texts(6);  // the prompt's pass yields the first token
  EXPECT_EQ(first.graphs_recorded, 1);
  EXPECT_EQ(first.graph_launches, 4);
  EXPECT_GE(first.graph_bytes, 4 * kGraphVocabulary * 4) << "the logits at least";
  const Statistics second = three_texts(6);
  EXPECT_EQ(second.graphs_recorded, 1);
  EXPECT_EQ(second.graph_launches, 4 + 5);
  for (uint64_t i = 0; i < 4; ++i) engine.submit({.number = i, .prompt = {4, 5}, .max_tokens = 5});
  all.finish(engine);  // four rows: the shape of three and one of padding
  EXPECT_EQ(engine.statistics().graphs_recorded, 1);
  EXPECT_EQ(engine.statistics().graph_launches, 4 + 5 + 4);
}

// Block tables become wider as texts grow.
TEST_F(DecodeGraphs, FollowTextsAsTheyGrow) {
  models::ModelFlags flags = llama_shape(1, 32, 2, 1, kGraphVocabulary, 512);
  flags.init_method_std = 0.3;
  const auto stage = stage_of(models::model_from_flags(flags, 0), runtime_, DType::f32);
  const auto run = [&](int64_t graphs) {
    Engine engine(*stage, runtime_, {.max_requests = 2, .block_size = 32, .cuda_graphs = graphs});
    Collected all;
    engine.submit(
        {.number = 1, .prompt = random_tokens(250, kGraphVocabulary, 3), .max_tokens = 14});
    engine.submit({.number = 2, .prompt = {7}, .max_tokens = 20});
    all.finish(engine);
    return all.outcome(engine);
  };
  const Outcome graphs = run(16);
  EXPECT_EQ(graphs.statistics.graphs_recorded, 3);  // two widths of two texts, and of one
  EXPECT_EQ(graphs.numbers, run(0).numbers);
  // With fewer row counts, a single text is padded to two rows.
  const Outcome one_count = run(1);
  EXPECT_EQ(one_count.statistics.graphs_recorded, 2);
  EXPECT_EQ(one_count.numbers, graphs.numbers);
}

// The pages of some texts are given to others, and these texts are read again into other pages.
TEST_F(DecodeGraphs, FollowTextsToOtherPages) {
  models::ModelFlags flags = llama_shape(1, 32, 2, 1, kGraphVocabulary, 128);
  flags.init_method_std = 0.3;
  const auto stage = stage_of(models::model_from_flags(flags, 0), runtime_, DType::f32);
  const int64_t of_block = 32 * nn::cache_groups(stage->layer_caches()).at(0).token_elements * 4;
  const auto run = [&](int64_t graphs) {
    Engine engine(
        *stage, runtime_,
        {.max_requests = 3, .block_size = 32, .cache_bytes = 5 * of_block, .cuda_graphs = graphs});
    Collected all;
    for (uint64_t i = 0; i < 3; ++i)
      engine.submit(
          {.number = i, .prompt = random_tokens(20, kGraphVocabulary, i), .max_tokens = 50});
    all.finish(engine);
    return all.outcome(engine);
  };
  const Outcome graphs = run(16);
  EXPECT_GT(graphs.statistics.preemptions, 0);
  EXPECT_GT(graphs.statistics.graph_launches, 50);
  EXPECT_EQ(graphs.numbers, run(0).numbers);
}

// Block tables of the encoder's texts have widths of their own.
TEST_F(DecodeGraphs, ReadWhatAnEncoderHasRead) {
  Json config = Json::read(std::string(MEGATRON_GOLDEN) + "/t5/hf/umt5/config.json");
  config.set("initializer_factor", 12.0);
  const auto stage = stage_of(models::model_from_config_json(config), runtime_, DType::f32);
  const auto run = [&](int64_t graphs) {
    Engine engine(*stage, runtime_,
                  {.max_requests = 3, .max_length = 320, .block_size = 32, .cuda_graphs = graphs});
    Collected all;
    for (const int64_t length : {300, 5, 40, 5}) {
      engine.submit({.number = static_cast<uint64_t>(length),
                     .prompt = random_tokens(length, 96, 3),
                     .max_tokens = 25,
                     .sampling = {.temperature = 0.9, .top_k = 20}});
      all.take(engine.step());
    }
    all.finish(engine);
    return all.outcome(engine);
  };
  const Outcome graphs = run(16);
  EXPECT_GE(graphs.statistics.graphs_recorded, 2);
  EXPECT_GT(graphs.statistics.graph_launches, 20);
  EXPECT_EQ(graphs.numbers, run(0).numbers);
  EXPECT_EQ(graphs.numbers.at(2), graphs.numbers.at(4));
}

TEST_F(DecodeGraphs, AreRecordedAnewWithOtherWeights) {
  const auto stage = stage_of(models::model_from_flags(windowed(), 0), runtime_, DType::f32);
  const auto run = [&](int64_t graphs) {
    models::initialize(*stage, 7, runtime_.stream());
    Engine engine(*stage, runtime_, {.max_requests = 2, .cuda_graphs = graphs});
    Collected all;
    for (uint64_t i = 0; i < 2; ++i)
      engine.submit({.number = i, .prompt = {1, 2, 3}, .max_tokens = 12});
    for (int i = 0; i < 5; ++i) all.take(engine.step());
    models::initialize(*stage, 99, runtime_.stream());
    engine.weights_changed();
    all.finish(engine);
    return all.outcome(engine);
  };
  const Outcome graphs = run(16);
  EXPECT_EQ(graphs.statistics.graphs_recorded, 2);
  EXPECT_EQ(graphs.numbers, run(0).numbers);
}

// The rotary table depends on the length: a text whose prompt is in the cache is read by a pass of
// one token, after other texts have used the angles of another length.
TEST_F(DecodeGraphs, LeaveOutAnglesThatDependOnTheLength) {
  const models::Model model = models::model_from_config_json(
      Json::read(std::string(MEGATRON_GOLDEN) + "/hf/llama_dynamic/config.json"));
  const auto stage = stage_of(model, runtime_, DType::f32);
  Engine engine(*stage, runtime_, {.max_requests = 1, .block_size = 32});
  Collected all;
  std::vector<RequestId> equal;
  for (const int64_t length : {33, 33, 33, 40, 33}) {
    const RequestId id = engine.submit({.prompt = random_tokens(length, 100, 3),
                                        .max_tokens = 1,
                                        .sampling = {.temperature = 0},
                                        .logprobs = 3,
                                        .first_scored = length});
    if (length == 33) equal.push_back(id);
    all.finish(engine);
  }
  const Outcome outcome = all.outcome(engine);
  EXPECT_EQ(outcome.statistics.cached_tokens, 3 * 32);
  EXPECT_EQ(outcome.statistics.graph_launches, 0);
  for (const RequestId id : equal) EXPECT_EQ(outcome.numbers.at(id), outcome.numbers.at(1));
}

std::shared_ptr<const inference::Adapter> lora(const models::Model& base, int64_t rank, bool dora,
                                               uint64_t seed) {
  models::LoraConfig config;
  config.rank = rank;
  config.alpha = static_cast<double>(4 * rank);
  config.init = models::LoraInit::random;
  config.all_linear = true;
  config.weight_decomposed = dora;
  auto adapter = std::make_shared<inference::Adapter>(
      base->with({.adapter = std::make_shared<const models::LoraConfig>(std::move(config))}),
      std::make_shared<Runtime>(Device{DeviceKind::cuda, 0}, 1), DType::f32,
      inference::Adapter::next_number());
  for (parallel::ParameterSpec* tensor : adapter->tensors())
    parallel::initialize(*tensor, seed, adapter->runtime().stream());
  adapter->runtime().stream().synchronize();
  return adapter;
}

// A graph has the adapters of its rows, and padding those of the last row. One that needs passes of
// its own is not recorded.
TEST_F(DecodeGraphs, HaveTheAdaptersOfTheirRows) {
  const models::Model base = models::model_from_flags(windowed(), 0);
  const auto stage = stage_of(base, runtime_, DType::f32);
  const auto one = lora(base, 3, false, 1), other = lora(base, 2, false, 2),
             alone = lora(base, 2, true, 3);
  using Adapters = std::vector<std::shared_ptr<const inference::Adapter>>;
  const auto run = [&](const Adapters& adapters, int64_t graphs) {
    Engine engine(*stage, runtime_, {.max_requests = 4, .max_tokens = 64, .cuda_graphs = graphs});
    Collected all;
    for (uint64_t i = 0; i < adapters.size(); ++i)
      engine.submit({.number = i,
                     .prompt = {1, 2, 3},
                     .max_tokens = 9,
                     .sampling = {.temperature = 0},
                     .logprobs = 1,
                     .adapter = adapters[i]});
    all.finish(engine);
    return all.outcome(engine);
  };
  // Three rows and one of padding: four eager passes, and four launches of one graph.
  const auto recorded = [&](const Adapters& adapters) {
    const Outcome graphs = run(adapters, 16);
    EXPECT_EQ(graphs.statistics.graphs_recorded, 1);
    EXPECT_EQ(graphs.statistics.graph_launches, 4);
    EXPECT_EQ(graphs.numbers, run(adapters, 0).numbers);
    return graphs.numbers;
  };
  const Numbers mixed = recorded({one, nullptr, other}), equal = recorded({one, one, one});
  EXPECT_EQ(equal.at(3), mixed.at(1));
  EXPECT_NE(mixed.at(2), mixed.at(1));
  EXPECT_NE(mixed.at(2), mixed.at(3));
  EXPECT_NE(mixed.at(1), mixed.at(3));
  EXPECT_EQ(run({alone, alone}, 16).statistics.graph_launches, 0);
}

Outcome tensor_parallel(comm::GpuBackend backend, int64_t graphs) {
  Outcome outcome;
  comm::run_ranks(
      2,
      [&](comm::Group& world) {
        const Device device{DeviceKind::cuda, world.rank()};
        Runtime runtime(device, 1);
        std::unique_ptr<comm::Group> made;
        const inference::EngineGroups groups({.tensor = 2},
                                             comm::for_device(world, device, made, backend));
        const auto stage =
            groups.build(models::model_from_flags(windowed(), 0), runtime, DType::f32, 1);
        models::initialize(*stage, 7, runtime.stream());
        const Outcome own =
            traffic(*stage, runtime, {.max_requests = 5, .max_tokens = 40, .cuda_graphs = graphs},
                    groups.ranks(false));
        if (world.rank() == 0) outcome = own;
      },
      20);
  return outcome;
}

// NCCL calls are part of a graph; calls through host memory are not.
TEST(DecodeGraphsOfRanks, HaveTheBitsOfPassesWithoutThem) {
  const Outcome graphs = tensor_parallel(comm::GpuBackend::nccl, 16);
  EXPECT_GT(graphs.statistics.graph_launches, 10);
  EXPECT_EQ(graphs.numbers, tensor_parallel(comm::GpuBackend::nccl, 0).numbers);
  const Outcome staged = tensor_parallel(comm::GpuBackend::gloo, 16);
  EXPECT_EQ(staged.statistics.graph_launches, 0);
  EXPECT_FALSE(staged.numbers.empty());
}

}  // namespace
}  // namespace megatron::testing
