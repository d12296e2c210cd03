// Families of decoders: Hugging Face's golden directories, and features that no family's file can
// represent.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/definition.h"
#include "models/decoder/heterogeneous.h"
#include "models/families/family.h"
#include "models/model.h"

namespace megatron::testing {

// Directories of the golden vectors `hf` that differ in more than their storage.
inline constexpr const char* kFamilyDirectories[] = {
    "gpt2",     "llama",       "llama3",      "llama_linear",     "llama_dynamic", "llama_yarn",
    "mistral",  "qwen2",       "qwen3",       "gemma2",           "gemma3_text",   "phi3",
    "olmo2",    "granite",     "falcon",      "nemotron",         "starcoder2",    "cohere2",
    "gpt_neox", "mixtral",     "qwen2_moe",   "qwen3_moe",        "olmoe",         "glm4_moe",
    "gpt_oss",  "llama4_text", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3",   "mamba2",
    "bamba",    "nemotron_h",  "falcon_h1",   "falcon_h1_norm",   "zamba2"};
inline constexpr const char* kEncoderDirectories[] = {
    "bert", "roberta", "distilbert", "modernbert", "esm", "bert_classify", "bert_tokens"};

inline constexpr const char* kEncoderDecoderDirectories[] = {"t5", "t5_v1_1", "umt5"};

inline std::string family_directory(const std::string& name) {
  const bool both =
      std::ranges::find(kEncoderDecoderDirectories, name) != std::end(kEncoderDecoderDirectories);
  return std::string(MEGATRON_GOLDEN) + (both ? "/t5/hf/" : "/hf/") + name;
}
inline Json family_config(const std::string& name) {
  return Json::read(family_directory(name) + "/config.json");
}

// A small Llama with four query heads and two key heads.
inline models::DecoderValue plain_decoder() {
  models::DecoderValue value{.vocab_size = 61, .hidden_size = 24, .max_position_embeddings = 32};
  models::LayerValue layer{
      .mixer = nn::AttentionConfig{.heads = 4, .kv_heads = 2, .head_size = 8, .rotary = "default"},
      .feed_forward =
          nn::MlpConfig{.ffn = 40, .activation = kernels::Activation::silu, .gated = true},
      .norm = {.kind = nn::Normalization::rms_norm}};
  value.layers.assign(3, layer);
  value.final_norm = layer.norm;
  value.rotary["default"] = {};
  value.untied = true;
  value.init_method_std = 0.2;
  return value;
}

// Four experts, with each token going through two.
inline nn::MoeConfig plain_experts() {
  nn::MoeConfig experts{
      .experts = 4,
      .choices = 2,
      .expert = {.ffn = 12, .activation = kernels::Activation::silu, .gated = true}};
  return experts;
}

// Features that no family of the golden vectors has.
inline std::vector<std::pair<std::string, models::DecoderValue>> other_decoders() {
  using models::DecoderValue;
  std::vector<std::pair<std::string, DecoderValue>> all;
  const auto add = [&](const std::string& name, auto change) {
    DecoderValue value = plain_decoder();
    change(value);
    all.emplace_back(name, std::move(value));
  };
  add("sinks and windows", [](DecoderValue& v) {
    v.layers[0].attention()->sinks = nn::Sinks::learned;
    v.layers[1].attention()->sinks = nn::Sinks::zero;
    v.layers[1].attention()->window = 3;
    v.layers[2].attention()->chunk = 5;
  });
  add("two-sided attention, with a window, a soft cap and sinks", [](DecoderValue& v) {
    for (models::LayerValue& layer : v.layers) layer.attention()->two_sided = true;
    v.layers[1].attention()->window = 3;
    v.layers[2].attention()->soft_cap = 1.5;
    v.layers[2].attention()->sinks = nn::Sinks::learned;
  });
  add("norms of heads without weights after angles with an amplitude, clamped gates",
      [](DecoderValue& v) {
        v.rotary["default"] = {
            .scaling = nn::RopeScaling::yarn, .factor = 4, .original_positions = 8};
        for (models::LayerValue& layer : v.layers) {
          layer.attention()->qk_norm = nn::QkNorm::l2;
          layer.mlp()->activation = kernels::Activation::quick_gelu;
          layer.mlp()->clamp = 0.5;
          layer.mlp()->up_offset = 1;
        }
      });
  add("queries, keys and values clipped, before norms and after; a gate; a temperature",
      [](DecoderValue& v) {
        v.layers[0].attention()->qkv_clip = 0.3;
        v.layers[1].attention()->qkv_clip = 0.5;
        v.layers[1].attention()->qk_norm = nn::QkNorm::full_width;
        v.layers[1].attention()->output_gate = true;
        v.layers[1].attention()->qkv_bias = true;
        v.layers[2].attention()->output_gate = true;
        v.layers[2].attention()->rotary.clear();
        v.layers[2].attention()->temperature = {.scale = 0.7, .step = 3};
      });
  add("LayerNorm of heads", [](DecoderValue& v) {
    for (models::LayerValue& layer : v.layers) {
      layer.norm = {.kind = nn::Normalization::layer_norm, .one_plus = true};
      layer.attention()->qk_norm = nn::QkNorm::head;
    }
  });
  add("layers without attention or MLP, or with a matrix for them", [](DecoderValue& v) {
    models::apply_blocks(Json::parse(R"([
        {"attention": {"no_op": true}, "ffn": {"ffn_hidden_size": 16}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": true}},
        {"attention": {"replace_with_linear": true}, "ffn": {"replace_with_linear": true}}])"),
                         "blocks", v);
  });
  add("state spaces with the norm before the gate, limits of steps and biases, and beside "
      "attention",
      [](DecoderValue& v) {
        nn::StateSpaceConfig space{.heads = 4,
                                   .head_size = 6,
                                   .groups = 2,
                                   .states = 5,
                                   .conv_width = 3,
                                   .bias = true,
                                   .output_bias = true,
                                   .min_step = 0.3,
                                   .max_step = 0.9,
                                   .order = kernels::GateOrder::norm_first,
                                   .multipliers = {0.5, 2, 1.5, 1, 0.25}};
        v.layers[0].mixer = space;
        space.conv_bias = space.bias = false;
        space.order = kernels::GateOrder::gate_only;
        v.layers[1].mixer = space;
        v.layers[2].mixer = models::HybridConfig{.attention = *v.layers[2].attention(),
                                                 .state_space = space,
                                                 .attention_factors = {.in = 0.5, .out = 3},
                                                 .state_space_factors = {.in = 1.5, .out = 0.75}};
        v.layers[2].mlp()->gate_multiplier = 1.5;
        v.layers[2].mlp()->output_multiplier = 0.5;
      });
  add("a norm for both, after a layer with norms before and after", [](DecoderValue& v) {
    v.layers[0].norm_after = true;
    v.layers[1].order = models::LayerValue::Order::parallel_one_norm;
    v.layers[1].residual_multiplier = 0.5;
    v.layers[2].order = models::LayerValue::Order::parallel;
    v.embedding_scale = 1.5;
    v.logits_scale = 0.7;
    v.logits_soft_cap = 2;
  });
  const auto add_experts = [&](const std::string& name, auto change) {
    add(name, [&](DecoderValue& v) {
      for (size_t i = 1; i < v.layers.size(); ++i) {
        nn::MoeConfig experts = plain_experts();
        change(experts);
        v.layers[i].feed_forward = experts;
      }
    });
  };
  using kernels::RouterScore;
  add_experts("a layer without experts before two with; one expert", [](nn::MoeConfig& m) {
    m.experts = m.choices = 1;
    m.router.softmax_first = true;
  });
  add_experts("every expert for every token", [](nn::MoeConfig& m) { m.choices = m.experts; });
  add_experts("groups of experts, chosen with a correction", [](nn::MoeConfig& m) {
    m.experts = 8;
    m.router = {.score = RouterScore::sigmoid,
                .normalised = true,
                .scale = 2.5,
                .groups = 4,
                .chosen_groups = 2,
                .group_best = 2};
    m.correction_bias = true;
    m.shared_ffn = 20;
  });
  add_experts("square roots of softplus; biases of router and experts; a gated shared expert",
              [](nn::MoeConfig& m) {
                m.router = {.score = RouterScore::sqrt_softplus};
                m.router_bias = m.expert.bias = true;
                m.shared_ffn = 16;
                m.shared_gate = true;
              });
  add_experts("experts of a latent width with a shared expert of the whole", [](nn::MoeConfig& m) {
    m.latent = 10;
    m.shared_ffn = 16;
  });
  add_experts("experts of a latent width with biases", [](nn::MoeConfig& m) {
    m.latent = 7;
    m.expert.bias = true;
    m.expert.gated = false;
  });
  add_experts("weights on the input of experts that are not gated", [](nn::MoeConfig& m) {
    m.choices = 1;
    m.router = {.score = RouterScore::sigmoid, .scale = 0.5};
    m.weights_on_input = true;
    m.expert = {.ffn = 20, .activation = kernels::Activation::squared_relu};
  });
  return all;
}

// The configuration that this program writes, for a family whose layers differ and that has no
// golden directory.
inline Json written_config(const std::string& family) {
  models::DecoderValue value = plain_decoder();
  for (models::LayerValue& layer : value.layers) layer.mlp()->ffn = 256;
  value.layers[0].mixer = models::NoOp{};
  value.layers[1].attention()->kv_heads = 4;
  value.layers[2].feed_forward = models::LinearConfig{};
  value.init_method_std = 0.02;
  return models::decoder_model(value, models::family_named(family))->config_json(DType::f32);
}

// A Qwen2 classifier, for which there is no golden directory.
inline Json qwen2_classifier() {
  Json config = family_config("qwen2");
  config.set("architectures", Json::parse(R"(["Qwen2ForSequenceClassification"])"));
  config.set("id2label", Json::parse(R"({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"})"));
  config.set("pad_token_id", 0);
  return config;
}

// One model of each family of decoders, language models only.
inline std::vector<std::pair<std::string, models::Model>> family_models() {
  std::vector<std::pair<std::string, models::Model>> all;
  for (const char* name : kFamilyDirectories)
    all.emplace_back(name, models::model_from_config_json(family_config(name)));
  for (const auto& [name, value] : other_decoders())
    all.emplace_back(name, models::decoder_model(value));
  return all;
}

}  // namespace megatron::testing
