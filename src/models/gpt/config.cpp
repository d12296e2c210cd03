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

void GptFlags::fields(Fields& f) {
  f.begin_group("model");
  f.add("num-layers", &num_layers, "number of decoder layers");
  f.add("hidden-size", &hidden_size, "width of the residual stream");
  f.add("ffn-hidden-size", &ffn_hidden_size,
        "width of the feed-forward block; default 4 x hidden, with --swiglu 8/3 x hidden rounded "
        "down to a multiple of 64");
  f.add("num-attention-heads", &num_attention_heads, "number of query heads");
  f.add("kv-channels", &kv_channels, "size of a head; default hidden / heads");
  f.add_switch("group-query-attention", &group_query_attention, true,
               "several query heads share a key head");
  f.add("num-query-groups", &num_query_groups, "number of key heads with --group-query-attention");
  f.add("max-position-embeddings", &max_position_embeddings,
        "longest sequence the model is made for; default --seq-length");
  f.add("vocab-size", &vocab_size, "number of tokens; default the tokenizer's");
  f.add_enum<PositionEmbedding>(
      "position-embedding-type", &position_embedding,
      {{"learned_absolute", PositionEmbedding::learned_absolute},
       {"rope", PositionEmbedding::rope}},
      "how positions enter: a learned table, or rotation of queries and keys");
  f.add("rotary-base", &rotary_base, "base of the rotary angles");
  f.add_enum<nn::Normalization>(
      "normalization", &normalization,
      {{"LayerNorm", nn::Normalization::layer_norm}, {"RMSNorm", nn::Normalization::rms_norm}},
      "normalisation before each block");
  f.add("norm-epsilon", &norm_epsilon, "added to the variance under the root");
  f.add_switch("swiglu", &swiglu, true,
               "gated feed-forward block with SiLU; else GELU (tanh form)");
  f.add_switch("disable-bias-linear", &add_bias_linear, false, "no biases in linear layers");
  f.add_switch("add-qkv-bias", &add_qkv_bias, true,
               "biases on queries, keys and values even with --disable-bias-linear");
  f.add_switch("untie-embeddings-and-output-weights", &untie, true, "output weights of their own");
  f.add("hidden-dropout", &hidden_dropout,
        "dropout after the embedding, attention and feed-forward blocks; default 0.1");
  f.add("attention-dropout", &attention_dropout, "dropout of attention probabilities; default 0.1");
  f.add("init-method-std", &init_method_std,
        "deviation of initial weights; block outputs have it divided by sqrt(2 x layers)");
  f.add("embedding-init-method-std", &embedding_init_method_std,
        "deviation of the embeddings' initial weights; default that of the others");
  f.add_switch(
      "init-method-xavier-uniform", &init_method_xavier_uniform, true,
      "initial weights between -a and a, a = sqrt(6 / (inputs + outputs)), of all matrices");
  f.add_switch(
      "no-bias-gelu-fusion", &bias_gelu_fusion, false,
      "GELU in its exact form, x Phi(x), which Megatron-LM computes where it does not fuse "
      "it with the bias; else the tanh form");
  f.common({"num-layers", "hidden-size", "num-attention-heads", "vocab-size"});
  f.of({"rotary-base"}, [this] {
    const bool rope = position_embedding == PositionEmbedding::rope;
    return rope ? "" : "--position-embedding-type is learned_absolute";
  });
  f.of({"add-qkv-bias"}, [this] {
    return add_bias_linear ? "without --disable-bias-linear all linear layers have biases" : "";
  });
  f.of({"no-bias-gelu-fusion"},
       [this] { return swiglu ? "with --swiglu no GELU is computed" : ""; });
  f.of({"init-method-std"}, [this] {
    return init_method_xavier_uniform ? "--init-method-xavier-uniform draws the weights" : "";
  });
}

GptConfig GptFlags::to_config(int64_t seq_length) const {
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
  c.num_layers = required(num_layers, "num-layers");
  c.hidden_size = required(hidden_size, "hidden-size");
  c.num_attention_heads = required(num_attention_heads, "num-attention-heads");
  c.ffn_hidden_size = optional(ffn_hidden_size, kMaxWidth, "ffn-hidden-size");
  c.kv_channels = optional(kv_channels, kMaxHeadSize, "kv-channels");
  if (group_query_attention)
    c.num_query_groups = optional(num_query_groups, kMaxHidden, "num-query-groups");
  c.max_position_embeddings = max_position_embeddings.value_or(seq_length);
  c.vocab_size = vocab_size.value_or(0);
  c.position_embedding = position_embedding;
  c.rotary_base = rotary_base;
  c.normalization = normalization;
  c.norm_epsilon = norm_epsilon;
  c.activation = swiglu             ? kernels::Activation::silu
                 : bias_gelu_fusion ? kernels::Activation::gelu_tanh
                                    : kernels::Activation::gelu_erf;
  c.gated = swiglu;
  c.qkv_bias = add_bias_linear || add_qkv_bias;
  c.attention_output_bias = c.mlp_bias = add_bias_linear;
  c.untied = untie;
  c.hidden_dropout = hidden_dropout.value_or(0.1);
  c.attention_dropout = attention_dropout.value_or(0.1);
  c.init_method_std = init_method_std;
  c.embedding_init_std = embedding_init_method_std;
  c.xavier_init = init_method_xavier_uniform;
  return c;
}

GptFlags flags_of(const GptConfig& c) {
  GptFlags f;
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

std::string GptFlags::first_shape_flag() const {
  for (const auto& [given, flag] :
       {std::pair{num_layers.has_value(), "num-layers"},
        {hidden_size.has_value(), "hidden-size"},
        {ffn_hidden_size.has_value(), "ffn-hidden-size"},
        {num_attention_heads.has_value(), "num-attention-heads"},
        {kv_channels.has_value(), "kv-channels"},
        {max_position_embeddings.has_value(), "max-position-embeddings"},
        {group_query_attention, "group-query-attention"},
        {num_query_groups != 1, "num-query-groups"},
        {position_embedding != PositionEmbedding::learned_absolute, "position-embedding-type"},
        {normalization != nn::Normalization::layer_norm, "normalization"},
        {swiglu, "swiglu"},
        {!add_bias_linear, "disable-bias-linear"},
        {add_qkv_bias, "add-qkv-bias"},
        {untie, "untie-embeddings-and-output-weights"},
        {rotary_base != 10000, "rotary-base"},
        {norm_epsilon != 1e-5, "norm-epsilon"},
        {init_method_std != 0.02, "init-method-std"},
        {embedding_init_method_std.has_value(), "embedding-init-method-std"},
        {init_method_xavier_uniform, "init-method-xavier-uniform"},
        {!bias_gelu_fusion, "no-bias-gelu-fusion"}}) {
    if (given) return flag;
  }
  return {};
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
