#include "models/families/config_json.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace megatron::models {
namespace {

template <class Get>
auto read(std::string_view key, Get get) {
  try {
    return get();
  } catch (const Error& error) {
    fail("config.json, {}: {}", key, error.what());
  }
}

// A value of the wrong type is shown.
template <class T>
T read(std::string_view key, const Json& value, T (Json::*get)() const) {
  try {
    return (value.*get)();
  } catch (const Error& error) {
    fail("config.json has {} = {}: {}", key, value.dump(), error.what());
  }
}

struct ScalingName {
  std::string_view name;
  nn::RopeScaling scaling;
};
constexpr std::array kScalings = {ScalingName{"default", nn::RopeScaling::none},
                                  ScalingName{"linear", nn::RopeScaling::linear},
                                  ScalingName{"dynamic", nn::RopeScaling::dynamic},
                                  ScalingName{"llama3", nn::RopeScaling::llama3},
                                  ScalingName{"yarn", nn::RopeScaling::yarn},
                                  ScalingName{"longrope", nn::RopeScaling::longrope},
                                  ScalingName{"su", nn::RopeScaling::longrope}};

nn::RopeScaling scaling_named(const std::string& name) {
  for (const ScalingName& known : kScalings)
    if (known.name == name) return known.scaling;
  fail(
      "config.json has rope_type = '{}'; supported: default, linear, dynamic, llama3, yarn, "
      "longrope",
      name);
}

// Without some keys a kind of scaling is nothing.
const Json& needed(const Json& parameters, std::string_view key) {
  const Json* value = present(parameters, key);
  MG_CHECK(value != nullptr, "config.json has rope_parameters (rope_scaling) = {} without {}",
           parameters.dump(), key);
  return *value;
}

double needed_number(const Json& parameters, std::string_view key) {
  return read(key, needed(parameters, key), &Json::as_number);
}

std::vector<double> needed_numbers(const Json& parameters, std::string_view key) {
  std::vector<double> values;
  for (const Json& value : read(key, needed(parameters, key), &Json::as_array))
    values.push_back(read(key, value, &Json::as_number));
  return values;
}

void read_yarn(const Json& p, nn::RotaryConfig& rotary) {
  rotary.beta_fast = number(p, "beta_fast", 32);
  rotary.beta_slow = number(p, "beta_slow", 1);
  rotary.mscale = number(p, "mscale", 0);
  rotary.mscale_all_dim = number(p, "mscale_all_dim", 0);
  rotary.attention_factor = number(p, "attention_factor", 0);
  rotary.truncate = boolean(p, "truncate", true);
}

}  // namespace

const Json* present(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise) {
  if (const Json* value = present(config, key)) {
    const int64_t number = read(key, *value, &Json::as_integer);
    constexpr int64_t kMost = int64_t{1} << 40;  // multiples of it stay within 63 bits
    MG_CHECK(number > 0, "config.json has {} = {}; a positive number is wanted", key, number);
    MG_CHECK(number <= kMost, "config.json has {} = {}; the most is {}", key, number, kMost);
    return number;
  }
  MG_CHECK(otherwise.has_value(), "config.json has no '{}'", key);
  return *otherwise;
}

double number(const Json& config, std::string_view key, double otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, *value, &Json::as_number);
}

bool boolean(const Json& config, std::string_view key, bool otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, *value, &Json::as_bool);
}

std::string text(const Json& config, std::string_view key, std::string otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, *value, &Json::as_string);
}

void refuse_unless(const Json& config, std::string_view key, const Json& value) {
  const Json* there = present(config, key);
  MG_CHECK(there == nullptr || *there == value, "config.json has {} = {}; only {} is supported",
           key, there->dump(), value.dump());
}

kernels::Activation activation(const Json& config, std::string_view key,
                               std::string_view otherwise) {
  using kernels::Activation;
  const std::string name = text(config, key, std::string(otherwise));
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu_erf;
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::squared_relu;
  if (name == "quick_gelu") return Activation::quick_gelu;
  fail(
      "config.json has {} = '{}'; supported: gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, silu, "
      "swish, relu, relu2, quick_gelu",
      key, name);
}

std::string activation_name(kernels::Activation activation) {
  using kernels::Activation;
  switch (activation) {
    case Activation::gelu_tanh: return "gelu_pytorch_tanh";
    case Activation::gelu_erf: return "gelu";
    case Activation::silu: return "silu";
    case Activation::relu: return "relu";
    case Activation::squared_relu: return "relu2";
    case Activation::quick_gelu: return "quick_gelu";
  }
  MG_ASSERT(false);
}

std::string stored_name(DType type) {
  switch (type) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

DecoderValue read_common(const Json& j, const CommonDefaults& otherwise) {
  DecoderValue value;
  const int64_t layers = integer(j, "num_hidden_layers");
  MG_CHECK(layers <= 1 << 16, "config.json has num_hidden_layers = {}; the most is {}", layers,
           1 << 16);
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, "max_position_embeddings", 2048);
  value.untied = !boolean(j, "tie_word_embeddings", otherwise.tied);
  nn::AttentionConfig attention{.heads = integer(j, "num_attention_heads"), .rotary = "default"};
  attention.kv_heads = integer(j, "num_key_value_heads",
                               otherwise.kv_heads > 0 ? otherwise.kv_heads : attention.heads);
  if (present(j, "head_dim") == nullptr && otherwise.head_size == 0) {
    MG_CHECK(value.hidden_size % attention.heads == 0,
             "config.json has hidden_size = {}, which is not a multiple of num_attention_heads = "
             "{}, and "
             "no head_dim",
             value.hidden_size, attention.heads);
    attention.head_size = value.hidden_size / attention.heads;
  } else {
    attention.head_size = integer(j, "head_dim", otherwise.head_size);
  }
  const nn::MlpConfig mlp{
      .ffn = integer(j, "intermediate_size"),
      .activation = activation(j, otherwise.activation_key, otherwise.activation),
      .gated = otherwise.gated};
  const nn::NormConfig norm{.kind = otherwise.norm,
                            .epsilon = number(j, otherwise.epsilon_key, otherwise.norm_epsilon)};
  value.layers.assign(static_cast<size_t>(layers),
                      {.mixer = attention, .feed_forward = mlp, .norm = norm});
  value.final_norm = norm;
  value.attention_dropout = number(j, "attention_dropout", 0);
  value.init_method_std = number(j, "initializer_range", 0.02);
  value.rotary["default"] = read_rotary(j, otherwise, value.max_position_embeddings);
  return value;
}

Json write_common(const DecoderValue& value, const CommonDefaults& otherwise) {
  const nn::AttentionConfig* a = value.first_attention();
  const nn::MlpConfig* mlp = value.first_mlp();
  MG_CHECK(a != nullptr && mlp != nullptr, "a model without attention or without an MLP");
  const auto rotary = value.rotary.find(a->rotary);
  const bool dynamic =
      rotary != value.rotary.end() && rotary->second.scaling == nn::RopeScaling::dynamic;
  Json j(Json::Object{});
  j.set("attention_dropout", value.attention_dropout);
  j.set("head_dim", a->head_size);
  j.set(otherwise.activation_key, activation_name(mlp->activation));
  j.set("hidden_size", value.hidden_size);
  j.set("initializer_range", value.init_method_std);
  j.set("intermediate_size", mlp->ffn);
  j.set("max_position_embeddings",
        dynamic ? rotary->second.original_positions : value.max_position_embeddings);
  j.set("num_attention_heads", a->heads);
  j.set("num_hidden_layers", value.num_layers());
  j.set("num_key_value_heads", a->kv_heads);
  j.set(otherwise.epsilon_key, value.layers[0].norm.epsilon);
  if (rotary != value.rotary.end())
    j.set("rope_parameters", write_rope_parameters(rotary->second, otherwise.rotary_fraction));
  j.set("tie_word_embeddings", !value.untied);
  j.set("vocab_size", value.vocab_size);
  return j;
}

nn::RotaryConfig read_rotary(const Json& config, const CommonDefaults& otherwise,
                             int64_t& max_positions) {
  const Json* parameters = present(config, "rope_parameters");
  if (parameters == nullptr) parameters = present(config, "rope_scaling");
  return read_rope_parameters(config, parameters == nullptr ? Json(Json::Object{}) : *parameters,
                              otherwise, max_positions);
}

nn::RotaryConfig read_rope_parameters(const Json& config, const Json& p,
                                      const CommonDefaults& otherwise, int64_t& max_positions) {
  MG_CHECK(p.is_object(),
           "config.json has rope_parameters (rope_scaling) = {}; an object is wanted", p.dump());
  nn::RotaryConfig rotary;
  const std::string type = text(p, "rope_type", text(p, "type", "default"));
  rotary.scaling = scaling_named(type);
  rotary.base = number(p, "rope_theta", number(config, "rope_theta", otherwise.rope_theta));
  rotary.fraction = number(p, "partial_rotary_factor",
                           number(config, "partial_rotary_factor", otherwise.rotary_fraction));
  const int64_t before = integer(config, "original_max_position_embeddings",
                                 integer(p, "original_max_position_embeddings", max_positions));
  using nn::RopeScaling;
  switch (rotary.scaling) {
    case RopeScaling::none: return rotary;
    case RopeScaling::linear: rotary.factor = needed_number(p, "factor"); return rotary;
    case RopeScaling::dynamic: {
      rotary.factor = needed_number(p, "factor");
      rotary.original_positions = max_positions;
      MG_CHECK(
          rotary.factor >= 1 && rotary.factor * static_cast<double>(max_positions) <= 1e9,
          "config.json scales rotary positions by a factor of {}; it must be 1 or more and give at "
          "most 1e9 positions",
          rotary.factor);
      max_positions = std::llround(rotary.factor * static_cast<double>(max_positions));
      return rotary;
    }
    case RopeScaling::llama3:
      rotary.factor = needed_number(p, "factor");
      rotary.low_freq_factor = needed_number(p, "low_freq_factor");
      rotary.high_freq_factor = needed_number(p, "high_freq_factor");
      needed(p, "original_max_position_embeddings");
      rotary.original_positions = integer(p, "original_max_position_embeddings");
      return rotary;
    case RopeScaling::yarn:
      rotary.original_positions = before;
      // The factor may follow from the two contexts, where both are there.
      rotary.factor =
          before == max_positions
              ? needed_number(p, "factor")
              : number(p, "factor",
                       static_cast<double>(max_positions) / static_cast<double>(before));
      read_yarn(p, rotary);
      return rotary;
    case RopeScaling::longrope:
      rotary.original_positions = before;
      rotary.short_factor = needed_numbers(p, "short_factor");
      rotary.long_factor = needed_numbers(p, "long_factor");
      rotary.attention_factor = number(p, "attention_factor", 0);
      return rotary;
  }
  MG_ASSERT(false);
}

Json write_rope_parameters(const nn::RotaryConfig& rotary, double fraction) {
  using nn::RopeScaling;
  Json p(Json::Object{});
  const RopeScaling scaling = rotary.scaling;
  const bool extended = scaling == RopeScaling::yarn || scaling == RopeScaling::llama3 ||
                        scaling == RopeScaling::longrope;
  if (scaling == RopeScaling::yarn) {
    p.set("beta_fast", rotary.beta_fast);
    p.set("beta_slow", rotary.beta_slow);
    if (rotary.mscale != 0) p.set("mscale", rotary.mscale);
    if (rotary.mscale_all_dim != 0) p.set("mscale_all_dim", rotary.mscale_all_dim);
  }
  if (rotary.attention_factor != 0) p.set("attention_factor", rotary.attention_factor);
  if (scaling != RopeScaling::none && scaling != RopeScaling::longrope)
    p.set("factor", rotary.factor);
  if (scaling == RopeScaling::llama3) {
    p.set("high_freq_factor", rotary.high_freq_factor);
    p.set("low_freq_factor", rotary.low_freq_factor);
  }
  if (scaling == RopeScaling::longrope)
    p.set("long_factor", Json::Array(rotary.long_factor.begin(), rotary.long_factor.end()));
  if (extended) p.set("original_max_position_embeddings", rotary.original_positions);
  if (rotary.fraction != 1 || fraction != 1) p.set("partial_rotary_factor", rotary.fraction);
  p.set("rope_theta", rotary.base);
  for (const ScalingName& known : kScalings) {
    if (known.scaling != scaling) continue;
    p.set("rope_type", known.name);
    break;
  }
  if (scaling == RopeScaling::longrope)
    p.set("short_factor", Json::Array(rotary.short_factor.begin(), rotary.short_factor.end()));
  if (scaling == RopeScaling::yarn && !rotary.truncate) p.set("truncate", false);
  return p;
}

void read_windows(const Json& j, DecoderValue& value, bool (*sliding)(const Json&, int64_t layer)) {
  const Json* types = present(j, "layer_types");
  MG_CHECK(types == nullptr ||
               (types->is_array() && std::ssize(types->as_array()) == value.num_layers()),
           "config.json has num_hidden_layers = {} and layer_types = {}; it must list one a layer",
           value.num_layers(), types->dump());
  const int64_t window = integer(j, "sliding_window", 0);
  for (int64_t i = 0; i < value.num_layers(); ++i) {
    bool slides = window > 0 && sliding(j, i);
    if (types != nullptr) {
      const std::string type = read(
          "layer_types", [&] { return types->as_array()[static_cast<size_t>(i)].as_string(); });
      MG_CHECK(type == "full_attention" || type == "sliding_attention",
               "config.json has '{}' in layer_types; supported: full_attention, sliding_attention",
               type);
      slides = type == "sliding_attention";
      MG_CHECK(!slides || window > 0,
               "config.json has sliding_attention in layer_types and no sliding_window");
    }
    if (slides) value.layers[static_cast<size_t>(i)].attention()->window = window;
  }
}

Json layer_types(const DecoderValue& value) {
  Json::Array types;
  for (const LayerValue& layer : value.layers) {
    const nn::AttentionConfig* a = layer.attention();
    types.emplace_back(a != nullptr && a->window > 0 ? "sliding_attention" : "full_attention");
  }
  return Json(std::move(types));
}

int64_t window_of(const DecoderValue& value) {
  for (const LayerValue& layer : value.layers)
    if (layer.attention() != nullptr && layer.attention()->window > 0)
      return layer.attention()->window;
  return 0;
}

int64_t first_window(const DecoderValue& value) {
  const auto found = std::ranges::find_if(value.layers, [](const LayerValue& layer) {
    return layer.attention() != nullptr && layer.attention()->window > 0;
  });
  return found - value.layers.begin();
}

void set_score_scale(nn::AttentionConfig& attention, double scale) {
  attention.scale = 0;
  if (scale != attention.score_scale()) attention.scale = scale;
}

void read_gemma(const Json& j, DecoderValue& value) {
  const auto scalar = static_cast<double>(integer(j, "query_pre_attn_scalar", 256));
  const bool bias = boolean(j, "attention_bias", false);
  for (LayerValue& layer : value.layers) {
    layer.norm.one_plus = true;
    layer.norm_after = true;
    nn::AttentionConfig& a = *layer.attention();
    set_score_scale(a, 1 / std::sqrt(scalar));
    a.qkv_bias = a.output_bias = bias;
  }
  value.final_norm.one_plus = true;
  value.embedding_scale = std::sqrt(static_cast<double>(value.hidden_size));
  value.rounds_embedding_scale = true;
}

void write_gemma(const DecoderValue& value, Json& j) {
  const nn::AttentionConfig& a = *value.first_attention();
  const double scalar = std::round(1 / (a.score_scale() * a.score_scale()));
  j.set("attention_bias", a.qkv_bias);
  // An integer, as transformers wants it.
  j.set("query_pre_attn_scalar",
        scalar < 0x1p53 ? Json(static_cast<int64_t>(scalar)) : Json(scalar));
  j.set("use_bidirectional_attention", false);
}

void read_score_head(const Json& j, DecoderValue& value) {
  const Json* architectures = present(j, "architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->as_array().empty())
    return;
  const std::string name =
      read("architectures", [&] { return architectures->as_array()[0].as_string(); });
  if (!name.ends_with("ForSequenceClassification")) return;
  const Json* labels = present(j, "id2label");
  const std::string problem = text(j, "problem_type", "");
  MG_CHECK(problem != "multi_label_classification",
           "config.json has problem_type = multi_label_classification, which is not supported; "
           "regression with one label and single_label_classification are");
  value.score_labels = labels != nullptr && labels->is_object() && !labels->as_object().empty()
                           ? static_cast<int64_t>(labels->as_object().size())
                           : integer(j, "num_labels", 2);
  if (const Json* pad = present(j, "pad_token_id"))
    value.score_pad_token = read("pad_token_id", [pad] { return pad->as_integer(); });
  MG_CHECK(problem != "regression" || value.score_labels == 1,
           "config.json has problem_type = regression and {} labels; one is supported",
           value.score_labels);
  value.untied = true;
}

void write_score_head(const DecoderValue& value, const std::string& name, Json& j) {
  if (value.score_labels == 0) {
    j.set("architectures", Json::Array{name + "ForCausalLM"});
    return;
  }
  j.set("architectures", Json::Array{name + "ForSequenceClassification"});
  Json::Object names, numbers;
  for (int64_t i = 0; i < value.score_labels; ++i) {
    names.emplace_back(std::to_string(i), "LABEL_" + std::to_string(i));
    numbers.emplace_back("LABEL_" + std::to_string(i), i);
  }
  j.set("id2label", std::move(names));
  j.set("label2id", std::move(numbers));
  j.set("pad_token_id", value.score_pad_token >= 0 ? Json(value.score_pad_token) : Json());
  j.set("problem_type", value.score_labels == 1 ? "regression" : "single_label_classification");
}

FamilyTensors llama_tensors(const DecoderValue& value, std::vector<TensorName> layer_norms) {
  FamilyTensors map{.layer_prefix = "model.layers.*.",
                    .outside = {{"embedding", "model.embed_tokens"},
                                {"final_norm", "model.norm"},
                                {"output", "lm_head"},
                                {"score", "score"}},
                    .layer = {{"attention.qkv", "self_attn.q_proj", Take::q},
                              {"attention.qkv", "self_attn.k_proj", Take::k},
                              {"attention.qkv", "self_attn.v_proj", Take::v},
                              {"attention.output", "self_attn.o_proj"},
                              {"attention.q_norm", "self_attn.q_norm"},
                              {"attention.k_norm", "self_attn.k_norm"}}};
  const nn::MlpConfig* mlp = value.first_mlp();
  const nn::MoeConfig* moe = value.first_moe();
  if (mlp != nullptr ? mlp->gated : moe != nullptr && moe->expert.gated) {
    map.layer.push_back({"mlp.up", "mlp.gate_proj", Take::gate});
    map.layer.push_back({"mlp.up", "mlp.up_proj", Take::up});
  } else {
    map.layer.push_back({"mlp.up", "mlp.up_proj"});
  }
  map.layer.push_back({"mlp.down", "mlp.down_proj"});
  map.layer.insert(map.layer.end(), layer_norms.begin(), layer_norms.end());
  return map;
}

}  // namespace megatron::models
