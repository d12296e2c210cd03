// Compares engines whose model is divided among ranks with one rank.
#include "base/error.h"
#include "constraint_cases.h"
#include "dist/inference/divided_engine.h"
#include "unit/models/summing_model.h"

namespace megatron::testing {
namespace {

constexpr uint64_t kRequests = 24;

std::vector<Request> divided_requests(double temperature = 0.9) {
  std::vector<Request> requests;
  for (uint64_t n = 0; n < kRequests; ++n) requests.push_back(divided_request(n, temperature));
  return requests;
}

// Submits requests in random order and at random moments, cancels some, and uses a cache too small
// for all of them. Returns results by number.
std::vector<Generation> run_together(Engine& e, const std::vector<Request>& requests) {
  std::mt19937_64 random(1);
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  Results results;
  std::vector<RequestId> ids(requests.size());
  for (const size_t number : order) {
    ids[number] = e.submit(requests[number]);
    const RequestId cancelled = e.submit(divided_request(number + 1000));
    for (uint64_t s = random() % 3; s > 0; --s) take(e.step(), results);
    e.cancel(cancelled);
  }
  while (!e.idle()) take(e.step(), results);
  EXPECT_GT(e.statistics().cached_tokens, 0);
  EXPECT_GT(e.statistics().preemptions, 0);
  EXPECT_EQ(e.cache_use().used, 0);
  std::vector<Generation> all;
  for (const RequestId id : ids) all.push_back(results[id]);
  return all;
}

// Bytes of `blocks` cache blocks for the layers of a rank.
int64_t bytes_of_blocks(const models::Stage& stage, DType type, int64_t blocks, int64_t size) {
  nn::SequenceStateShape shape{.layers = stage.layer_caches(), .block_size = size};
  shape.pages.assign(nn::cache_groups(shape.layers).size(), blocks);
  return shape.bytes(type);
}

std::vector<std::vector<Generation>> run_divided(RandomModel& m, const Division& d,
                                                 const std::vector<Request>& requests,
                                                 int64_t blocks = 8, int64_t block_size = 32) {
  std::vector<std::vector<Generation>> of_ranks;
  std::mutex mutex;
  // Ranks of one stage may have memory for more blocks than ranks of another stage.
  const int64_t bytes =
      bytes_of_blocks(m.model, m.type(), blocks, block_size) / d.stages / d.tensor;
  on_parts(m, d, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
    Engine e(stage, runtime,
             {.max_requests = 12, .max_tokens = 40, .block_size = block_size, .cache_bytes = bytes},
             ranks);
    auto results = run_together(e, requests);
    const std::lock_guard lock(mutex);
    of_ranks.push_back(std::move(results));
  });
  EXPECT_EQ(of_ranks.size(), static_cast<size_t>(d.led ? 1 : d.stages * d.tensor));
  return of_ranks;
}

void expect_bits_of_one_rank(RandomModel& m, const Division& d, int64_t blocks = 8,
                             int64_t block_size = 32) {
  const std::vector<Request> requests = divided_requests();
  const std::vector<Generation> expected = each_alone(m, requests);
  for (const auto& results : run_divided(m, d, requests, blocks, block_size))
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(numbers_of(results[i]), numbers_of(expected[i])) << "request " << i;
}

// Two layers attend to 39 tokens and one to all, on different stages.
models::ModelFlags windows_shape(int64_t layers) {
  models::ModelFlags flags = llama_shape(layers, 32, 4, 2, kDividedVocabulary, kDividedPositions);
  flags.window_size = "39,0";
  flags.window_attn_skip_freq = std::to_string(layers);
  return flags;
}

class Pipelines : public ::testing::TestWithParam<bool> {};

TEST_P(Pipelines, GiveTheBitsOfOneRank) {
  for (const DType type : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name(type));
    RandomModel m(windows_shape(3), type);
    expect_bits_of_one_rank(m, {.stages = 2, .led = GetParam()});
  }
}

// Each stage has a copy of the table: the first stage embeds with it, and the last computes logits
// with it.
TEST_P(Pipelines, OfTiedEmbeddingsToo) {
  RandomModel m(gpt2_shape(3, 32, 4, kDividedVocabulary, kDividedPositions), DType::f32);
  expect_bits_of_one_rank(m, {.stages = 3, .led = GetParam()}, 6);
}

// Groups of pages and of slots are numbered otherwise on a stage than in the model.
TEST_P(Pipelines, WithSlotsToo) {
  RandomModel m(summing_model(windows_shape(3)), DType::f32);
  expect_bits_of_one_rank(m, {.stages = 2, .led = GetParam()});
}

// Both stages use one block, and the first sends the output of the embedding along with the hidden
// states. Later tokens read what blocks and state spaces have kept of earlier ones.
TEST_P(Pipelines, OfSharedBlocksToo) {
  RandomModel m(models::model_from_config_json(Json::parse(fmt::format(
                    R"({{"model_type": "zamba2", "vocab_size": {}, "hidden_size": 16,
    "num_hidden_layers": 4, "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
    "num_mem_blocks": 1, "num_attention_heads": 4, "intermediate_size": 24, "adapter_rank": 3,
    "use_shared_attention_adapter": true, "use_mem_rope": true, "mamba_d_state": 6,
    "n_mamba_heads": 4, "mamba_ngroups": 2, "max_position_embeddings": {},
    "initializer_range": 0.3}})",
                    kDividedVocabulary, kDividedPositions))),
                DType::f32);
  expect_bits_of_one_rank(m, {.stages = 2, .led = GetParam()}, 6, 64);
}

INSTANTIATE_TEST_SUITE_P(All, Pipelines, ::testing::Bool());

// The most likely token wins by a large margin.
TEST(TensorParallelEngines, AreCloseToOneRank) {
  RandomModel m(windows_shape(3), DType::f32);
  const std::vector<Request> requests = divided_requests(0);
  const std::vector<Generation> expected = each_alone(m, requests);
  for (const Division& d : {Division{.tensor = 2}, Division{.tensor = 2, .stages = 2, .led = true},
                            Division{.tensor = 2, .stages = 2}}) {
    SCOPED_TRACE(fmt::format("tensor {}, stages {}", d.tensor, d.stages));
    const auto of_ranks = run_divided(m, d, requests);
    expect_near(of_ranks[0], expected);
    for (const auto& results : of_ranks)
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(numbers_of(results[i]), numbers_of(of_ranks[0][i]));
  }
}

// Two ranks share each of the groups of b and c, and each key head.
TEST(TensorParallelEngines, ShareGroupsOfStateSpaces) {
  models::ModelFlags flags = llama_shape(3, 32, 4, 2, kDividedVocabulary, kDividedPositions);
  flags.num_layers.reset();
  flags.hybrid_layer_pattern = "M*M";
  flags.mamba_num_heads = 8;
  flags.mamba_head_dim = 8;
  flags.mamba_num_groups = 2;
  flags.mamba_state_dim = 8;
  RandomModel m(flags, DType::f32);
  const std::vector<Request> requests = divided_requests(0);
  const std::vector<Generation> expected = each_alone(m, requests);
  const auto of_ranks = run_divided(m, {.tensor = 4}, requests, 6, 64);
  for (const auto& results : of_ranks) expect_near(results, expected);
}

TEST(TensorParallelEngines, GiveTheAlternativesOfPrompts) {
  RandomModel m(windows_shape(3), DType::f32);
  const Request request{.prompt = random_tokens(50, kDividedVocabulary, 3),
                        .max_tokens = 0,
                        .logprobs = 0,
                        .prompt_alternatives = 3};
  const auto alternatives = [&](Engine& e) {
    e.submit(request);
    std::vector<int64_t> all;  // [ranks, tokens]
    while (!e.idle()) {
      for (const RequestUpdate& update : e.step()) {
        for (const auto& at : update.prompt_alternatives) {
          all.push_back(at.rank);
          for (const auto& draw : at.likely) all.push_back(draw.token);
        }
      }
    }
    return all;
  };
  Engine one(m.model, m.runtime, {});
  const std::vector<int64_t> expected = alternatives(one);
  EXPECT_EQ(expected.size(), 49u * 4);
  for (const Division& d : {Division{.tensor = 2}, Division{.tensor = 2, .stages = 2, .led = true}})
    on_parts(m, d, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
      Engine e(stage, runtime, {}, ranks);
      EXPECT_EQ(alternatives(e), expected);
    });
}

// Each rank has whole experts or slices of some.
TEST(ExpertParallelEngines, AreCloseToOneRank) {
  models::ModelFlags flags = windows_shape(3);
  flags.moe.num_experts = 4;
  flags.moe.shared_ffn = 16;
  flags.moe.layer_freq = "[0,1,1]";
  RandomModel m(flags, DType::f32);
  std::vector<Request> requests = divided_requests(0);
  for (size_t i = 0; i < requests.size(); i += 4) requests[i].expert_choices = true;
  const std::vector<Generation> expected = each_alone(m, requests);
  EXPECT_FALSE(expected[0].expert_choices.empty());
  for (const Division& d : {Division{.tensor = 2, .stages = 2, .led = true, .experts = 2},
                            Division{.tensor = 4, .experts = 2}}) {
    SCOPED_TRACE(fmt::format("tensor {}, stages {}, experts {}", d.tensor, d.stages, d.experts));
    // With two key heads, pairs of the four ranks hold the same one.
    const auto of_ranks = run_divided(m, d, requests, d.tensor > 2 ? 14 : 8);
    expect_near(of_ranks[0], expected);
    for (const auto& results : of_ranks)
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(numbers_of(results[i]), numbers_of(of_ranks[0][i]));
  }
}

TEST(ExpertParallelEngines, AreForModelsWhoseExpertsCanBeDivided) {
  const auto none = [](const models::Stage&, Runtime&, const EngineRanks&) {};
  models::ModelFlags flags = windows_shape(1);
  const auto refusal = [&] {
    RandomModel m(flags, DType::f32);
    try {
      on_parts(m, {.tensor = 2, .experts = 2}, none);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal().find("--expert-model-parallel-size is 2, but the model has no experts"),
            std::string::npos);
  flags.moe.num_experts = 3;
  EXPECT_NE(refusal().find("3 experts cannot be divided evenly among 2 ranks"), std::string::npos);
}

// Log-probabilities of prompts, one prompt after another.
std::vector<double> scores_of(const models::Stage& stage, Runtime& runtime,
                              const EngineRanks& ranks = {}) {
  std::vector<Request> requests;
  for (uint64_t n = 0; n < 4; ++n)
    requests.push_back({.number = n,
                        .prompt = random_tokens(100, kDividedVocabulary, 10 + n),
                        .max_tokens = 0,
                        .logprobs = 0});
  std::vector<double> scores;
  for (const Generation& g :
       inference::generate(stage, runtime, requests, {.max_tokens = 64}, {}, nullptr, ranks))
    std::ranges::copy(g.prompt_log_probabilities, std::back_inserter(scores));
  return scores;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0;
  for (size_t i = 0; i < b.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

TEST(TensorParallelEngines, InBf16AreAsFarFromFp32AsOneRank) {
  RandomModel exact(windows_shape(3), DType::f32), m(windows_shape(3), DType::bf16);
  const std::vector<double> oracle = scores_of(exact.model, exact.runtime),
                            one = scores_of(m.model, m.runtime);
  ASSERT_EQ(oracle.size(), 4u * 99);
  on_parts(m, {.tensor = 2, .stages = 2},
           [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
             const std::vector<double> divided = scores_of(stage, runtime, ranks);
             EXPECT_NE(divided, one);
             EXPECT_LE(distance(divided, oracle), 1.5 * distance(one, oracle));
           });
}

// Only the leading rank has the grammar, and another request is running.
TEST(LedEngines, HoldToAGrammarAndFailAlone) {
  RandomModel m(gpt2_shape(2, 32, 4, 256, kDividedPositions), DType::f32);
  const auto grammar = [](const char* pattern, uint64_t number) {
    return Request{.number = number,
                   .prompt = {1, 2, 3},
                   .max_tokens = 12,
                   .grammar = inference::Grammar::from_regex(pattern),
                   .token_bytes = inference::byte_tokens()};
  };
  const Request free{.number = 3, .prompt = {4, 5}, .max_tokens = 20};
  const std::vector<double> alone = numbers_of(
      inference::generate(m.model, m.runtime, std::span(&free, 1), {.vocabulary = 97})[0]);
  for (const Division& d : {Division{.stages = 2, .led = true}, Division{.stages = 2}}) {
    on_parts(m, d, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
      Engine e(stage, runtime, {.vocabulary = 97}, ranks);
      const RequestId held = e.submit(grammar("[0-9]{4}", 1));
      const RequestId impossible = e.submit(grammar("12z", 2));  // z is id 122
      const RequestId goes_on = e.submit(free);
      Results results;
      std::string error;
      while (!e.idle()) {
        std::vector<RequestUpdate> updates = e.step();
        for (const RequestUpdate& u : updates)
          if (u.id == impossible && u.finish == Finish::failed) error = u.error;
        take(std::move(updates), results);
      }
      EXPECT_EQ(results[held].tokens.size(), 4u);
      for (const int32_t id : tokens_of(results[held])) EXPECT_TRUE(id >= '0' && id <= '9') << id;
      EXPECT_EQ(results[held].finish, Finish::complete);
      EXPECT_EQ(tokens_of(results[impossible]), (Tokens{'1', '2'}));
      EXPECT_EQ(results[impossible].finish, Finish::failed);
      EXPECT_FALSE(error.empty());
      EXPECT_EQ(numbers_of(results[goes_on]), alone);
    });
  }
}

// Creates one engine after another, as generate() does. Errors in requests must not end any rank.
TEST(LedEngines, ComeOneAfterTheOther) {
  RandomModel m(gpt2_shape(2, 32, 4, kDividedVocabulary, kDividedPositions), DType::f32);
  const std::vector<Request> requests = divided_requests();
  const std::vector<Generation> expected = each_alone(m, requests);
  on_parts(m, {.stages = 2, .led = true},
           [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
             for (size_t i = 0; i < 3; ++i) {
               const auto one = inference::generate(stage, runtime, std::span(&requests[i], 1), {},
                                                    {}, nullptr, ranks);
               EXPECT_EQ(numbers_of(one[0]), numbers_of(expected[i]));
               Engine e(stage, runtime, {}, ranks);
               EXPECT_THROW(e.submit({.prompt = {}}), Error);
               e.submit(requests[i]);
               e.step();  // the request ends with its engine
             }
             Engine e(stage, runtime, {.max_tokens = 16}, ranks);
             const RequestId id = e.submit(requests[17]);
             Results results;
             for (int i = 0; i < 3; ++i) take(e.step(), results);
             e.weights_changed();
             while (!e.idle()) take(e.step(), results);
             EXPECT_EQ(numbers_of(results[id]), numbers_of(expected[17]));
           });
}

// The first error ends all ranks and is the one thrown.
TEST(LedEngines, EndWithTheRankThatFails) {
  RandomModel m(gpt2_shape(2, 32, 4, kDividedVocabulary, kDividedPositions), DType::f32);
  const auto error_of = [&](const Division& d, const RankBody& body) -> std::string {
    try {
      on_parts(m, d, body);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(error_of({.stages = 2, .led = true},
                     [](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
                       Engine(stage, runtime, {.cache_bytes = 1000}, ranks);
                     })
                .find("--inference-dynamic-batching-buffer-size-gb is 0.000"),
            std::string::npos);
  for (const int failing : {0, 1}) {
    const std::string error = error_of(
        {.stages = 2}, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
          Engine e(stage, runtime, {}, ranks);
          e.submit(divided_request(8));
          e.step();
          MG_CHECK(ranks.all->rank() != failing, "rank {} has had enough", failing);
          while (!e.idle()) e.step();
          ADD_FAILURE() << "the other rank goes on";
        });
    EXPECT_NE(error.find(fmt::format("rank {} has had enough", failing)), std::string::npos)
        << error;
  }
  // Ranks make different calls.
  EXPECT_NE(error_of({.stages = 2},
                     [](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
                       Engine e(stage, runtime, {}, ranks);
                       e.submit(divided_request(8 + static_cast<uint64_t>(ranks.all->rank())));
                       EXPECT_THROW(while (!e.idle()) e.step(), Error);
                       EXPECT_TRUE(ranks.failed());
                       EXPECT_THROW(Engine(stage, runtime, {}, ranks), Error) << "for good";
                     })
                .find("activation"),
            std::string::npos);
}

// The embedding is computed on the last stage. With tensor parallelism it is only
// close to that of one rank.
TEST(LedEngines, GiveTheEmbeddingOfOneRank) {
  RandomModel m(windows_shape(3), DType::f32);
  const Tokens text = random_tokens(50, kDividedVocabulary, 4);
  const std::vector<float> expected = Engine(m.model, m.runtime, {}).embedding(text);
  ASSERT_EQ(expected.size(), 32u);
  for (const Division& d : {Division{.stages = 3, .led = true}, Division{.stages = 3},
                            Division{.tensor = 2, .stages = 2, .led = true}}) {
    on_parts(m, d, [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
      Engine e(stage, runtime, {}, ranks);
      for (int i = 0; i < 2; ++i) {  // also between texts
        const std::vector<float> found = e.embedding(text);
        if (!ranks.draws()) {
          EXPECT_TRUE(found.empty());
        } else if (d.tensor == 1) {
          EXPECT_EQ(found, expected);
        } else {
          ASSERT_EQ(found.size(), expected.size());
          for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k], expected[k], 1e-5);
        }
        e.submit(divided_request(8));
        while (!e.idle()) e.step();
      }
    });
  }
}

TEST(LedEngines, GoOnWhereThereIsNoMemoryForOne) {
  RandomModel m(gpt2_shape(2, 32, 4, kDividedVocabulary, kDividedPositions), DType::f32);
  const Request request = divided_request(8);
  on_parts(m, {.stages = 2, .led = true},
           [&](const models::Stage& stage, Runtime& runtime, const EngineRanks& ranks) {
             const EngineOptions huge{.max_requests = int64_t{1} << 40,
                                      .cache_bytes = int64_t{1} << 50};
             EXPECT_THROW(Engine(stage, runtime, huge, ranks), inference::EngineRefused);
             Engine e(stage, runtime, {}, ranks);
             Results results;
             const RequestId id = e.submit(request);
             while (!e.idle()) take(e.step(), results);
             EXPECT_EQ(numbers_of(results[id]), numbers_of(each_alone(m, {request})[0]));
           });
}

TEST(EngineGroups, RefusesMoreStagesThanLayers) {
  RandomModel m(gpt2_shape(2, 32, 4, kDividedVocabulary, kDividedPositions), DType::f32);
  EXPECT_THROW(
      on_parts(m, {.stages = 3}, [](const models::Stage&, Runtime&, const EngineRanks&) {}), Error);
}

}  // namespace
}  // namespace megatron::testing
