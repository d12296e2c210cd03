#include "models/gpt/config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace megatron::models {
namespace {

// Far above any model, and small enough that no product of sizes leaves 63 bits.
constexpr int64_t kMaxLayers = 1 << 16, kMaxHidden = 1 << 20, kMaxWidth = 1 << 24,
                  kMaxHeadSize = 1 << 16;

void check_size(int64_t value, int64_t limit, std::string_view flag) {
  MG_CHECK(value > 0 && value <= limit, "--{} is {}; it must lie in [1, {}]", flag, value, limit);
}

}  // namespace

GptConfig config_of(const ModelFlags& f, int64_t seq_length) {
  const auto required = [](const std::optional<int64_t>& value, std::string_view flag) {
    MG_CHECK(value.has_value(),
             "the model's shape needs --{}; or give --model DIR with a Hugging Face config.json",
             flag);
    return *value;
  };
  // 0 would mean the default.
  const auto optional = [](const std::optional<int64_t>& value, int64_t limit,
                           std::string_view flag) {
    if (value) check_size(*value, limit, flag);
    return value.value_or(0);
  };
  GptConfig c;
  c.num_layers = required(f.num_layers, "num-layers");
  c.hidden_size = required(f.hidden_size, "hidden-size");
  c.num_attention_heads = required(f.num_attention_heads, "num-attention-heads");
  c.ffn_hidden_size = optional(f.ffn_hidden_size, kMaxWidth, "ffn-hidden-size");
  c.kv_channels = optional(f.kv_channels, kMaxHeadSize, "kv-channels");
  if (f.group_query_attention)
    c.num_query_groups = optional(f.num_query_groups, kMaxHidden, "num-query-groups");
  c.max_position_embeddings = f.max_position_embeddings.value_or(seq_length);
  c.vocab_size = f.vocab_size.value_or(0);
  c.position_embedding = f.position_embedding;
  c.rotary_base = f.rotary_base;
  c.normalization = f.normalization;
  c.norm_epsilon = f.norm_epsilon;
  c.activation = f.swiglu             ? kernels::Activation::silu
                 : f.bias_gelu_fusion ? kernels::Activation::gelu_tanh
                                      : kernels::Activation::gelu_erf;
  c.gated = f.swiglu;
  c.qkv_bias = f.add_bias_linear || f.add_qkv_bias;
  c.attention_output_bias = c.mlp_bias = f.add_bias_linear;
  c.untied = f.untie;
  c.hidden_dropout = f.hidden_dropout.value_or(0.1);
  c.attention_dropout = f.attention_dropout.value_or(0.1);
  c.init_method_std = f.init_method_std;
  c.embedding_init_std = f.embedding_init_method_std;
  c.xavier_init = f.init_method_xavier_uniform;
  return c;
}

ModelFlags flags_of(const GptConfig& c) {
  ModelFlags f;
  f.num_layers = c.num_layers;
  f.hidden_size = c.hidden_size;
  f.num_attention_heads = c.num_attention_heads;
  f.ffn_hidden_size = c.ffn_hidden_size;
  f.kv_channels = c.kv_channels;
  f.max_position_embeddings = c.max_position_embeddings;
  f.vocab_size = c.vocab_size;
  f.group_query_attention = c.num_query_groups != c.num_attention_heads;
  if (f.group_query_attention) f.num_query_groups = c.num_query_groups;
  f.position_embedding = c.position_embedding;
  f.rotary_base = c.rotary_base;
  f.normalization = c.normalization;
  f.norm_epsilon = c.norm_epsilon;
  f.swiglu = c.gated;
  f.add_bias_linear = c.mlp_bias;
  f.add_qkv_bias = c.qkv_bias && !c.mlp_bias;
  f.untie = c.untied;
  f.hidden_dropout = c.hidden_dropout;
  f.attention_dropout = c.attention_dropout;
  f.init_method_std = c.init_method_std;
  f.embedding_init_method_std = c.embedding_init_std;
  f.init_method_xavier_uniform = c.xavier_init;
  f.bias_gelu_fusion = c.activation != kernels::Activation::gelu_erf;
  return f;
}

Json describe(const GptConfig& c) {
  constexpr std::array activations = {"gelu_tanh", "gelu_erf", "silu", "relu"};
  const bool rope = c.position_embedding == PositionEmbedding::rope;
  Json::Object shape = {
      {"num-layers", c.num_layers},
      {"hidden-size", c.hidden_size},
      {"ffn-hidden-size", c.ffn_hidden_size},
      {"num-attention-heads", c.num_attention_heads},
      {"num-query-groups", c.num_query_groups},
      {"kv-channels", c.kv_channels},
      {"max-position-embeddings", c.max_position_embeddings},
      {"vocab-size", c.vocab_size},
      {"position-embedding-type", rope ? "rope" : "learned_absolute"},
      {"normalization", c.normalization == nn::Normalization::rms_norm ? "RMSNorm" : "LayerNorm"},
      {"norm-epsilon", c.norm_epsilon},
      {"activation", activations[static_cast<size_t>(c.activation)]},
      {"gated", c.gated},
      {"qkv-bias", c.qkv_bias},
      {"attention-output-bias", c.attention_output_bias},
      {"mlp-bias", c.mlp_bias},
      {"untied", c.untied}};
  if (rope) shape.emplace_back("rotary-base", c.rotary_base);
  return shape;
}

void GptConfig::finalize() {
  check_size(num_layers, kMaxLayers, "num-layers");
  check_size(hidden_size, kMaxHidden, "hidden-size");
  check_size(num_attention_heads, kMaxHidden, "num-attention-heads");
  check_size(vocab_size, kMaxVocabulary, "vocab-size");
  check_size(max_position_embeddings, kMaxPositions, "max-position-embeddings");
  if (num_query_groups == 0) num_query_groups = num_attention_heads;
  check_size(num_query_groups, kMaxHidden, "num-query-groups");
  MG_CHECK(
      num_attention_heads % num_query_groups == 0,
      "--num-attention-heads {} is not a multiple of --num-query-groups {}; change one of them",
      num_attention_heads, num_query_groups);
  if (kv_channels == 0) {
    MG_CHECK(hidden_size % num_attention_heads == 0,
             "--hidden-size {} is not a multiple of --num-attention-heads {}; change one of them "
             "or give --kv-channels",
             hidden_size, num_attention_heads);
    kv_channels = hidden_size / num_attention_heads;
  }
  check_size(kv_channels, kMaxHeadSize, "kv-channels");
  MG_CHECK(num_attention_heads * kv_channels <= kMaxWidth,
           "--num-attention-heads {} times the head size {} (--kv-channels) is above {}",
           num_attention_heads, kv_channels, kMaxWidth);
  MG_CHECK(position_embedding != PositionEmbedding::rope || kv_channels % 2 == 0,
           "the head size is {}; rotary positions need an even one: change --kv-channels or "
           "--num-attention-heads",
           kv_channels);
  if (ffn_hidden_size == 0) {
    ffn_hidden_size =
        gated ? std::max<int64_t>(8 * hidden_size / 3 / 64 * 64, 64) : 4 * hidden_size;
  }
  check_size(ffn_hidden_size, kMaxWidth, "ffn-hidden-size");
  const auto probability = [](double value, std::string_view flag) {
    MG_CHECK(value >= 0 && value < 1, "--{} is {}; it must lie in [0, 1)", flag, value);
  };
  probability(hidden_dropout, "hidden-dropout");
  probability(attention_dropout, "attention-dropout");
  MG_CHECK(norm_epsilon > 0 && std::isfinite(norm_epsilon),
           "--norm-epsilon is {}; it must be positive", norm_epsilon);
  MG_CHECK(init_method_std >= 0 && std::isfinite(init_method_std),
           "--init-method-std is {}; it must be 0 or more", init_method_std);
  MG_CHECK(!embedding_init_std || (*embedding_init_std >= 0 && std::isfinite(*embedding_init_std)),
           "--embedding-init-method-std is {}; it must be 0 or more", *embedding_init_std);
  MG_CHECK(rotary_base > 0 && std::isfinite(rotary_base),
           "--rotary-base is {}; it must be positive", rotary_base);
}

}  // namespace megatron::models
