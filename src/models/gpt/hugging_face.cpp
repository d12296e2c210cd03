// config.json of transformers' gpt2 and llama, both ways. Keys: transformers 5; older spellings are
// read too.
#include "base/error.h"
#include "models/gpt/config.h"

namespace megatron::models {
namespace {

const Json* present(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

template <class Get>
auto read(std::string_view key, Get get) {
  try {
    return get();
  } catch (const Error& error) {
    fail("config.json, {}: {}", key, error.what());
  }
}

// A size. What is absent may have a default; 0 then stands for one that depends on other keys.
int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise = {}) {
  if (const Json* value = present(config, key)) {
    const int64_t number = read(key, [value] { return value->as_integer(); });
    MG_CHECK(number > 0, "config.json has {} = {}; a positive number is wanted", key, number);
    return number;
  }
  MG_CHECK(otherwise.has_value(), "config.json has no '{}'", key);
  return *otherwise;
}

double number(const Json& config, std::string_view key, double otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, [value] { return value->as_number(); });
}

bool boolean(const Json& config, std::string_view key, bool otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, [value] { return value->as_bool(); });
}

std::string text(const Json& config, std::string_view key, std::string otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, [value] { return value->as_string(); });
}

kernels::Activation activation_named(const std::string& name) {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return kernels::Activation::gelu_tanh;
  if (name == "gelu") return kernels::Activation::gelu_erf;
  if (name == "silu" || name == "swish") return kernels::Activation::silu;
  if (name == "relu") return kernels::Activation::relu;
  fail(
      "config.json asks for the activation '{}'; supported: gelu_new, gelu_pytorch_tanh, gelu, "
      "silu, swish, relu",
      name);
}

std::string activation_name(kernels::Activation activation) {
  switch (activation) {
    case kernels::Activation::gelu_tanh: return "gelu_new";
    case kernels::Activation::gelu_erf: return "gelu";
    case kernels::Activation::silu: return "silu";
    case kernels::Activation::relu: return "relu";
  }
  MG_ASSERT(false);
}

GptConfig from_gpt2(const Json& j) {
  for (const auto key :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    MG_CHECK(!boolean(j, key, false), "config.json has {} = true, which is not supported", key);
  }
  MG_CHECK(boolean(j, "scale_attn_weights", true),
           "config.json has scale_attn_weights = false, which is not supported");
  GptConfig c;
  c.num_layers = integer(j, "n_layer");
  c.hidden_size = integer(j, "n_embd");
  c.num_attention_heads = integer(j, "n_head");
  c.ffn_hidden_size = integer(j, "n_inner", 0);
  c.max_position_embeddings = integer(j, "n_positions");
  c.vocab_size = integer(j, "vocab_size");
  c.norm_epsilon = number(j, "layer_norm_epsilon", 1e-5);
  c.activation = activation_named(text(j, "activation_function", "gelu_new"));
  c.untied = !boolean(j, "tie_word_embeddings", true);
  c.hidden_dropout = number(j, "resid_pdrop", 0.1);
  c.attention_dropout = number(j, "attn_pdrop", 0.1);
  c.init_method_std = number(j, "initializer_range", 0.02);
  return c;
}

constexpr double kDefaultRopeTheta = 10000;

double rope_theta(const Json& j) {
  const Json* rope = present(j, "rope_parameters");
  if (rope == nullptr) rope = present(j, "rope_scaling");
  if (rope != nullptr) {
    const std::string type = text(*rope, "rope_type", text(*rope, "type", "default"));
    MG_CHECK(type == "default",
             "config.json asks for rope_type '{}'; this version supports 'default' only", type);
    MG_CHECK(number(*rope, "partial_rotary_factor", 1) == 1,
             "config.json asks for a partial_rotary_factor of {}; only 1 is supported",
             number(*rope, "partial_rotary_factor", 1));
    if (present(*rope, "rope_theta") != nullptr)
      return number(*rope, "rope_theta", kDefaultRopeTheta);
  }
  return number(j, "rope_theta", kDefaultRopeTheta);
}

GptConfig from_llama(const Json& j) {
  MG_CHECK(integer(j, "pretraining_tp", 1) == 1,
           "config.json has pretraining_tp {}; only 1 is supported",
           integer(j, "pretraining_tp", 1));
  GptConfig c;
  c.num_layers = integer(j, "num_hidden_layers");
  c.hidden_size = integer(j, "hidden_size");
  c.num_attention_heads = integer(j, "num_attention_heads");
  c.num_query_groups = integer(j, "num_key_value_heads", c.num_attention_heads);
  c.kv_channels = integer(j, "head_dim", 0);
  c.ffn_hidden_size = integer(j, "intermediate_size");
  c.max_position_embeddings = integer(j, "max_position_embeddings");
  c.vocab_size = integer(j, "vocab_size");
  c.position_embedding = PositionEmbedding::rope;
  c.rotary_base = rope_theta(j);
  c.normalization = nn::Normalization::rms_norm;
  c.norm_epsilon = number(j, "rms_norm_eps", 1e-6);
  c.activation = activation_named(text(j, "hidden_act", "silu"));
  c.gated = true;
  c.qkv_bias = c.attention_output_bias = boolean(j, "attention_bias", false);
  c.mlp_bias = boolean(j, "mlp_bias", false);
  c.untied = !boolean(j, "tie_word_embeddings", false);
  c.hidden_dropout = 0;
  c.attention_dropout = number(j, "attention_dropout", 0);
  c.init_method_std = number(j, "initializer_range", 0.02);
  return c;
}

std::string stored_name(DType type) {
  switch (type) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

Json to_gpt2(const GptConfig& c, DType stored) {
  Json j(Json::Object{});
  j.set("activation_function", activation_name(c.activation));
  j.set("architectures", Json::Array{"GPT2LMHeadModel"});
  j.set("attn_pdrop", c.attention_dropout);
  j.set("dtype", stored_name(stored));
  j.set("embd_pdrop", c.hidden_dropout);
  j.set("initializer_range", c.init_method_std);
  j.set("layer_norm_epsilon", c.norm_epsilon);
  j.set("model_type", "gpt2");
  j.set("n_embd", c.hidden_size);
  j.set("n_head", c.num_attention_heads);
  j.set("n_inner", c.ffn_hidden_size);
  j.set("n_layer", c.num_layers);
  j.set("n_positions", c.max_position_embeddings);
  j.set("resid_pdrop", c.hidden_dropout);
  j.set("tie_word_embeddings", !c.untied);
  j.set("vocab_size", c.vocab_size);
  return j;
}

Json to_llama(const GptConfig& c, DType stored) {
  Json rope(Json::Object{});
  rope.set("rope_theta", c.rotary_base);
  rope.set("rope_type", "default");
  Json j(Json::Object{});
  j.set("architectures", Json::Array{"LlamaForCausalLM"});
  j.set("attention_bias", c.qkv_bias);
  j.set("attention_dropout", c.attention_dropout);
  j.set("dtype", stored_name(stored));
  j.set("head_dim", c.kv_channels);
  j.set("hidden_act", activation_name(c.activation));
  j.set("hidden_size", c.hidden_size);
  j.set("initializer_range", c.init_method_std);
  j.set("intermediate_size", c.ffn_hidden_size);
  j.set("max_position_embeddings", c.max_position_embeddings);
  j.set("mlp_bias", c.mlp_bias);
  j.set("model_type", "llama");
  j.set("num_attention_heads", c.num_attention_heads);
  j.set("num_hidden_layers", c.num_layers);
  j.set("num_key_value_heads", c.num_query_groups);
  j.set("rms_norm_eps", c.norm_epsilon);
  j.set("rope_parameters", rope);
  if (c.rotary_base != kDefaultRopeTheta) j.set("rope_theta", c.rotary_base);
  j.set("tie_word_embeddings", !c.untied);
  j.set("vocab_size", c.vocab_size);
  return j;
}

// A message about flags, said of the keys that they stand for in this file.
std::string with_keys(std::string text, bool gpt2) {
  struct Key {
    std::string_view flag, gpt2, llama;
  };
  // A flag that begins another one's name comes after it.
  constexpr Key kKeys[] = {
      {"--num-layers", "n_layer", "num_hidden_layers"},
      {"--ffn-hidden-size", "n_inner", "intermediate_size"},
      {"--hidden-size", "n_embd", "hidden_size"},
      {"--num-attention-heads", "n_head", "num_attention_heads"},
      {"--num-query-groups", "n_head", "num_key_value_heads"},
      {"--kv-channels", "n_embd / n_head", "head_dim"},
      {"--max-position-embeddings", "n_positions", "max_position_embeddings"},
      {"--vocab-size", "vocab_size", "vocab_size"},
      {"--hidden-dropout", "resid_pdrop", "hidden_dropout"},
      {"--attention-dropout", "attn_pdrop", "attention_dropout"},
      {"--norm-epsilon", "layer_norm_epsilon", "rms_norm_eps"},
      {"--init-method-std", "initializer_range", "initializer_range"},
      {"--rotary-base", "rope_theta", "rope_theta"},
  };
  for (const Key& key : kKeys) {
    const std::string_view name = gpt2 ? key.gpt2 : key.llama;
    for (size_t at = 0; (at = text.find(key.flag, at)) != text.npos; at += name.size())
      text.replace(at, key.flag.size(), name);
  }
  return text;
}

}  // namespace

GptConfig config_from_hugging_face(const Json& config) {
  const std::string type = config["model_type"].as_string();
  MG_CHECK(type == "gpt2" || type == "llama",
           "config.json has model_type '{}'; this version supports gpt2 and llama", type);
  GptConfig c = type == "gpt2" ? from_gpt2(config) : from_llama(config);
  try {
    c.finalize();
  } catch (const Error& error) {
    fail("config.json: {}", with_keys(error.what(), type == "gpt2"));
  }
  return c;
}

Json config_to_hugging_face(const GptConfig& c, DType stored) {
  const bool rope = c.position_embedding == PositionEmbedding::rope;
  if (rope) {
    MG_CHECK(c.normalization == nn::Normalization::rms_norm && c.gated,
             "a model with rotary positions is stored as Hugging Face's llama, which needs "
             "--normalization RMSNorm and --swiglu");
    MG_CHECK(c.qkv_bias == c.attention_output_bias,
             "Hugging Face's llama has biases on queries, keys, values and the output of "
             "attention, or on none: drop --add-qkv-bias");
    MG_CHECK(c.hidden_dropout == 0,
             "Hugging Face's llama has no hidden dropout (--hidden-dropout is {}): use "
             "--hidden-dropout 0",
             c.hidden_dropout);
    return to_llama(c, stored);
  }
  MG_CHECK(c.normalization == nn::Normalization::layer_norm && !c.gated,
           "a model with learned positions is stored as Hugging Face's gpt2, which needs "
           "--normalization LayerNorm and no --swiglu");
  MG_CHECK(c.qkv_bias && c.attention_output_bias && c.mlp_bias,
           "a model with learned positions is stored as Hugging Face's gpt2, which needs biases: "
           "drop --disable-bias-linear");
  MG_CHECK(c.num_query_groups == c.num_attention_heads &&
               c.kv_channels * c.num_attention_heads == c.hidden_size,
           "a model with learned positions is stored as Hugging Face's gpt2, which has no query "
           "groups and no head size of its own: "
           "drop --group-query-attention and --kv-channels");
  return to_gpt2(c, stored);
}

}  // namespace megatron::models
