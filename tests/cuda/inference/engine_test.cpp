// An engine on CUDA samples on the device: it draws the same tokens as the host, and copies only
// tokens and losses.
#include "inference/engine.h"

#include <gtest/gtest.h>

#include <map>

#include "device/cuda_plugin.h"
#include "inference/generate.h"
#include "models/model_flags.h"
#include "models/stage.h"

namespace megatron::inference {
namespace {

constexpr int64_t kVocabulary = 97;

class CudaEngine : public ::testing::Test {
 protected:
  static models::Model model() {
    models::ModelFlags flags;
    flags.num_layers = 2;
    flags.hidden_size = 32;
    flags.num_attention_heads = 4;
    flags.vocab_size = kVocabulary;
    flags.hidden_dropout = flags.attention_dropout = 0;
    flags.max_position_embeddings = 64;
    flags.init_method_std = 0.3;
    return models::model_from_flags(flags, 0);
  }
  CudaEngine() : stage_(model().build(runtime_, DType::f32, 1)) {
    models::initialize(*stage_, 7, runtime_.stream());
  }
  // Bytes copied from a device to the host so far.
  static int64_t to_host() {
    return reinterpret_cast<int64_t (*)(const char*)>(cuda_symbol("shim_alive"))("to host");
  }

  Runtime runtime_{{DeviceKind::cuda, 0}, 1};
  std::unique_ptr<models::Stage> stage_;
};

Request request(uint64_t number, const SamplingOptions& sampling) {
  Request r{.number = number, .prompt = {}, .max_tokens = 6, .sampling = sampling};
  for (uint64_t i = 0; i <= number % 3; ++i)
    r.prompt.push_back(static_cast<int32_t>((number * 31 + i * 17) % kVocabulary));
  return r;
}

std::vector<Request> requests() {
  std::vector<Request> all;
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 0}, SamplingOptions{}, SamplingOptions{.top_k = 5},
        SamplingOptions{.temperature = 1.7, .top_p = 0.8, .seed = 5},
        SamplingOptions{.temperature = 0.6, .top_k = 20, .top_p = 0.9, .min_p = 0.05},
        SamplingOptions{.repetition_penalty = 1.3}, SamplingOptions{.min_tokens = 3}})
    all.push_back(request(all.size(), options));
  return all;
}

// Rows that need alternatives are sampled on the host.
TEST_F(CudaEngine, DrawsOnTheDeviceWhatTheHostDraws) {
  std::vector<Request> here = requests(), there = requests();
  for (Request& r : there) r.logprobs = 1;
  const auto on_device = generate(*stage_, runtime_, here, {});
  const auto on_host = generate(*stage_, runtime_, there, {});
  for (size_t i = 0; i < here.size(); ++i) {
    ASSERT_EQ(on_device[i].tokens.size(), 6U);
    for (size_t t = 0; t < 6; ++t) {
      EXPECT_EQ(on_device[i].tokens[t].draw.token, on_host[i].tokens[t].draw.token) << i;
      EXPECT_EQ(on_device[i].tokens[t].draw.log_probability,
                on_host[i].tokens[t].draw.log_probability)
          << i;
      EXPECT_EQ(on_host[i].tokens[t].alternatives.size(), 1U);
    }
  }
}

// The copied rows include padding.
TEST_F(CudaEngine, CopiesEightBytesOfARowToTheHost) {
  const auto step_bytes = [&](std::span<const SamplingOptions> options) {
    Engine engine(*stage_, runtime_, {.max_requests = 4, .max_tokens = 16});
    for (size_t i = 0; i < options.size(); ++i) engine.submit(request(i, options[i]));
    EXPECT_EQ(engine.step().size(), options.size());  // reads the prompts
    const int64_t before = to_host();
    EXPECT_EQ(engine.step().size(), options.size());
    const int64_t bytes = to_host() - before;
    while (!engine.idle()) engine.step();
    return bytes;
  };
  const std::vector<SamplingOptions> three = {{.temperature = 0}, {.top_k = 5}, {.top_p = 0.7}};
  EXPECT_EQ(step_bytes(three), 4 * 8);
  // Copies the logits of the row that the host samples, and the losses of a second call for all
  // rows.
  const std::vector<SamplingOptions> mixed = {{.temperature = 0}, {.repetition_penalty = 1.5}};
  EXPECT_EQ(step_bytes(mixed), 2 * 8 + kVocabulary * 4 + 2 * 4);
}

// Pages are copied on the device between passes that are launched as graphs.
TEST_F(CudaEngine, SearchesBeamsAsTheHostDoes) {
  Runtime host({DeviceKind::cpu, 0}, 1);
  const auto on_host = model().build(host, DType::f32, 1);
  models::initialize(*on_host, 7, host.stream());
  Request r = request(2, {});
  r.max_tokens = 40;
  r.beams = {.beams = 4, .returned = 4, .early_stopping = EarlyStopping::never};
  const auto beams = [&](const models::Stage& stage, Runtime& runtime, EngineOptions options) {
    options.block_size = 32;
    return generate(stage, runtime, std::span(&r, 1), options)[0].beams;
  };
  const std::vector<BeamResult> expected = beams(*on_host, host, {});
  const std::vector<BeamResult> in_graphs = beams(*stage_, runtime_, {});
  const std::vector<BeamResult> eager = beams(*stage_, runtime_, {.cuda_graphs = 0});
  ASSERT_EQ(expected.size(), 4U);
  ASSERT_EQ(in_graphs.size(), 4U);
  ASSERT_EQ(eager.size(), 4U);
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_NEAR(in_graphs[b].score, expected[b].score, 1e-4);
    EXPECT_EQ(in_graphs[b].score, eager[b].score);
    ASSERT_EQ(in_graphs[b].tokens.size(), expected[b].tokens.size());
    for (size_t t = 0; t < expected[b].tokens.size(); ++t)
      EXPECT_EQ(in_graphs[b].tokens[t].draw.token, expected[b].tokens[t].draw.token);
  }
}

// Latents as wide as DeepSeek's, which the device reads in absorbed form, too: of prompts in pieces
// and of single tokens, whose passes are launched as graphs.
class CudaLatents : public ::testing::Test {
 protected:
  static constexpr EngineOptions kOptions{
      .max_requests = 3, .max_tokens = 16, .latent_decode = LatentDecode::absorbed};

  static models::Model model() {
    models::ModelFlags flags;
    flags.num_layers = 1;
    flags.hidden_size = 24;
    flags.num_attention_heads = 2;
    flags.vocab_size = kVocabulary;
    flags.hidden_dropout = flags.attention_dropout = 0;
    flags.max_position_embeddings = 64;
    flags.init_method_std = 0.3;
    flags.position_embedding = models::PositionEmbedding::rope;
    flags.add_bias_linear = false;
    flags.multi_latent_attention = true;
    flags.kv_lora_rank = 512;
    flags.qk_head_dim = flags.v_head_dim = 12;
    flags.qk_pos_emb_head_dim = 64;
    flags.model_family = "megatron";
    return models::model_from_flags(flags, 0);
  }
  static std::vector<Request> requests() {
    std::vector<Request> all;
    for (const uint64_t length : {3, 23, 9}) {
      Request r{.number = length, .prompt = {}, .max_tokens = 6, .sampling = {.temperature = 0.8}};
      for (uint64_t i = 0; i < length; ++i)
        r.prompt.push_back(static_cast<int32_t>((length * 31 + i * 17) % kVocabulary));
      all.push_back(r);
    }
    return all;
  }
  static std::vector<Generation> generated(DeviceKind kind, DType type,
                                           const std::vector<Request>& requests,
                                           const EngineOptions& options = kOptions) {
    Runtime runtime({kind, 0}, 1);
    const auto stage = model().build(runtime, type, 1);
    models::initialize(*stage, 7, runtime.stream());
    return generate(*stage, runtime, requests, options);
  }
};

TEST_F(CudaLatents, GiveTheTokensOfTheHost) {
  EngineOptions plain = kOptions;
  plain.latent_decode = LatentDecode::plain;
  const auto here = generated(DeviceKind::cuda, DType::f32, requests()),
             there = generated(DeviceKind::cpu, DType::f32, requests()),
             computed_again = generated(DeviceKind::cuda, DType::f32, requests(), plain);
  int64_t differ = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    ASSERT_EQ(here[i].tokens.size(), 6U);
    for (size_t t = 0; t < 6; ++t) {
      const double got = here[i].tokens[t].draw.log_probability;
      EXPECT_EQ(here[i].tokens[t].draw.token, there[i].tokens[t].draw.token) << i << ", " << t;
      EXPECT_NEAR(got, there[i].tokens[t].draw.log_probability, 1e-4) << i << ", " << t;
      EXPECT_NEAR(got, computed_again[i].tokens[t].draw.log_probability, 1e-4) << i << ", " << t;
      differ += got != computed_again[i].tokens[t].draw.log_probability;
    }
  }
  EXPECT_GT(differ, 0) << "both forms give the same bits: is the absorbed one not run?";
}

// The stand-in's products, unlike a GPU's, do not depend on the number of rows.
TEST_F(CudaLatents, OfSeveralRequestsAreThoseOfEachAlone) {
  const std::vector<Request> all = requests();
  const auto together = generated(DeviceKind::cuda, DType::bf16, all);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto alone = generated(DeviceKind::cuda, DType::bf16, {all[i]});
    for (size_t t = 0; t < 6; ++t) {
      EXPECT_EQ(together[i].tokens[t].draw.token, alone[0].tokens[t].draw.token) << i << ", " << t;
      EXPECT_EQ(together[i].tokens[t].draw.log_probability, alone[0].tokens[t].draw.log_probability)
          << i << ", " << t;
    }
  }
}

TEST_F(CudaEngine, SaysWhichLogitIsNoNumber) {
  Tensor weights = stage_->parameters()[0]->parameter.value;
  std::vector<double> values = to_doubles(weights);
  values[5 * 32] = std::numeric_limits<double>::quiet_NaN();  // the embedding of token 5
  copy_from(weights, values);
  Request r{.number = 1, .prompt = {3, 4}, .max_tokens = 2, .sampling = {}};
  Engine engine(*stage_, runtime_, {.max_requests = 1, .max_tokens = 16});
  engine.submit(r);
  const std::vector<RequestUpdate> updates = engine.step();
  ASSERT_EQ(updates.size(), 1U);
  EXPECT_EQ(updates[0].finish, Finish::failed);
  EXPECT_NE(updates[0].error.find("logit of token 5 is not a number"), std::string::npos)
      << updates[0].error;
}

}  // namespace
}  // namespace megatron::inference
