#include "models/families/config_json.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/decoder/value_checks.h"
#include "models/facts.h"
#include "models/families/rotary_json.h"

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

}  // namespace

const Json* present(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise) {
  if (const Json* value = present(config, key)) {
    const int64_t number = read(key, *value, &Json::as_integer);
    constexpr int64_t kMax = int64_t{1} << 40;  // small multiples still fit 63 bits
    MG_CHECK(number > 0, "config.json has {} = {}; it must be a positive number", key, number);
    MG_CHECK(number <= kMax, "config.json has {} = {}; the maximum is {}", key, number, kMax);
    return number;
  }
  MG_CHECK(otherwise.has_value(), "config.json has no '{}'", key);
  return *otherwise;
}

int64_t layer_count(const Json& config, std::string_view key, std::optional<int64_t> otherwise) {
  const int64_t layers = integer(config, key, otherwise);
  MG_CHECK(layers <= kMaxLayers, "config.json has {} = {}; the maximum is {}", key, layers,
           kMaxLayers);
  return layers;
}

int64_t count(const Json& config, std::string_view key) {
  const Json* value = present(config, key);
  const bool good = value != nullptr && value->is_number() && value->as_number() >= 0;
  MG_CHECK(good, "config.json has {} = {}; it must be a number of 0 or more", key,
           value == nullptr ? "null" : value->dump());
  return read(key, *value, &Json::as_integer);
}

double number(const Json& config, std::string_view key, std::optional<double> otherwise) {
  const Json* value = present(config, key);
  MG_CHECK(value != nullptr || otherwise.has_value(), "config.json has no '{}'", key);
  return value == nullptr ? *otherwise : read(key, *value, &Json::as_number);
}

double positive(const Json& config, std::string_view key, std::optional<double> otherwise) {
  const double value = number(config, key, otherwise);
  MG_CHECK(value > 0 && std::isfinite(value),
           "config.json has {} = {}; it must be a positive number", key, value);
  return value;
}

bool boolean(const Json& config, std::string_view key, std::optional<bool> otherwise) {
  const Json* value = present(config, key);
  MG_CHECK(value != nullptr || otherwise.has_value(), "config.json has no '{}'", key);
  return value == nullptr ? *otherwise : read(key, *value, &Json::as_bool);
}

std::string text(const Json& config, std::string_view key, std::optional<std::string> otherwise) {
  const Json* value = present(config, key);
  MG_CHECK(value != nullptr || otherwise.has_value(), "config.json has no '{}'", key);
  return value == nullptr ? *otherwise : read(key, *value, &Json::as_string);
}

void refuse_unless(const Json& config, std::string_view key, const Json& value) {
  const Json* there = present(config, key);
  MG_CHECK(there == nullptr || *there == value, "config.json has {} = {}; only {} is supported",
           key, there->dump(), value.dump());
}

kernels::Activation activation(const Json& config, std::string_view key) {
  using kernels::Activation;
  const std::string name = text(config, key);
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

DecoderValue read_common(const Json& j, const CommonForm& form) {
  DecoderValue value;
  const int64_t layers = layer_count(j, "num_hidden_layers");
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, "max_position_embeddings");
  value.untied = !boolean(j, "tie_word_embeddings");
  nn::AttentionConfig attention{
      .heads = integer(j, "num_attention_heads"), .qk_norm = form.qk_norm, .rotary = "default"};
  if (form.attention_bias)
    attention.qkv_bias = attention.output_bias = boolean(j, "attention_bias");
  attention.kv_heads = integer(j, "num_key_value_heads", attention.heads);
  if (present(j, "head_dim") == nullptr) {
    MG_CHECK(value.hidden_size % attention.heads == 0,
             "config.json has hidden_size = {}, which is not a multiple of num_attention_heads = "
             "{}, and no head_dim",
             value.hidden_size, attention.heads);
    attention.head_size = value.hidden_size / attention.heads;
  } else {
    attention.head_size = integer(j, "head_dim");
  }
  const nn::MlpConfig mlp{.ffn = integer(j, "intermediate_size"),
                          .activation = activation(j, form.activation_key),
                          .gated = form.gated,
                          .bias = form.mlp_bias && boolean(j, "mlp_bias")};
  const nn::NormConfig norm{.kind = form.norm, .epsilon = positive(j, form.epsilon_key)};
  value.layers.assign(static_cast<size_t>(layers),
                      {.mixer = attention, .feed_forward = mlp, .norm = norm});
  value.final_norm = norm;
  value.attention_dropout = number(j, "attention_dropout", 0);
  value.init_method_std = number(j, "initializer_range");
  value.rotary["default"] = read_rotary(j, form.partial_rotary);
  return value;
}

Json write_common(const DecoderValue& value, const CommonForm& form) {
  const nn::AttentionConfig* a = value.first_attention();
  const nn::MlpConfig* mlp = value.first_mlp();
  MG_CHECK(a != nullptr && mlp != nullptr, "a model without attention or without an MLP");
  const auto rotary = value.rotary.find(a->rotary);
  Json j(Json::Object{});
  if (form.attention_bias) j.set("attention_bias", a->qkv_bias);
  j.set("attention_dropout", value.attention_dropout);
  j.set("head_dim", a->head_size);
  j.set(form.activation_key, activation_name(mlp->activation));
  j.set("hidden_size", value.hidden_size);
  j.set("initializer_range", value.init_method_std);
  j.set("intermediate_size", mlp->ffn);
  j.set("max_position_embeddings", value.max_position_embeddings);
  if (form.mlp_bias) j.set("mlp_bias", mlp->bias);
  j.set("num_attention_heads", a->heads);
  j.set("num_hidden_layers", value.num_layers());
  j.set("num_key_value_heads", a->kv_heads);
  j.set(form.epsilon_key, value.layers[0].norm.epsilon);
  if (rotary != value.rotary.end())
    j.set("rope_parameters", write_rotary(rotary->second, form.partial_rotary));
  j.set("tie_word_embeddings", !value.untied);
  j.set("vocab_size", value.vocab_size);
  return j;
}

std::vector<bool> listed_layers(const Json& j, int64_t layers, std::string_view kind) {
  std::vector<bool> listed;
  const Json* types = present(j, "layer_types");
  if (types == nullptr) return listed;
  MG_CHECK(
      types->is_array() && std::ssize(types->as_array()) == layers,
      "config.json has num_hidden_layers = {} and layer_types = {}; it must list one per layer",
      layers, types->dump());
  for (const Json& entry : types->as_array()) {
    const std::string type = entry.is_string() ? entry.as_string() : entry.dump();
    MG_CHECK(type == "full_attention" || type == kind,
             "config.json has '{}' in layer_types; supported: full_attention, {}", type, kind);
    listed.push_back(type == kind);
  }
  return listed;
}

void read_windows(const Json& j, DecoderValue& value, const LayerTest& sliding) {
  const std::vector<bool> listed = listed_layers(j, value.num_layers(), "sliding_attention");
  for (int64_t i = 0; i < value.num_layers(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (listed.empty() ? !sliding(i) : !listed[at]) continue;
    MG_CHECK(present(j, "sliding_window") != nullptr,
             "config.json has no sliding_window, which layer {} needs for sliding attention; give "
             "layer_types if all layers have full attention",
             i);
    value.layers[at].attention()->window = integer(j, "sliding_window");
  }
}

void read_optional_windows(const Json& given, DecoderValue& value, const LayerTest& sliding) {
  Json j = given;
  const bool used = boolean(j, "use_sliding_window");
  if (!used) j.set("sliding_window", Json());
  const bool none = present(j, "sliding_window") == nullptr;
  read_windows(j, value, [&](int64_t layer) { return !none && sliding(layer); });
}

void read_late_windows(const Json& j, DecoderValue& value) {
  const int64_t first = count(j, "max_window_layers");
  read_optional_windows(j, value, [first](int64_t layer) { return layer >= first; });
}

void read_window(const Json& j, DecoderValue& value) {
  if (present(j, "sliding_window") == nullptr) return;
  const int64_t window = integer(j, "sliding_window");
  for (LayerValue& layer : value.layers) layer.attention()->window = window;
}

void write_windows(const DecoderValue& value, Json& j) {
  Json::Array types;
  for (const LayerValue& layer : value.layers) {
    const nn::AttentionConfig* a = layer.attention();
    types.emplace_back(a != nullptr && a->window > 0 ? "sliding_attention" : "full_attention");
  }
  j.set("layer_types", std::move(types));
  j.set("sliding_window", sliding_window(value));
}

void write_late_windows(const DecoderValue& value, Json& j) {
  write_windows(value, j);
  j.set("max_window_layers", first_window(value));
  j.set("use_sliding_window", window_of(value) > 0);
}

int64_t window_of(const DecoderValue& value) {
  for (const LayerValue& layer : value.layers)
    if (layer.attention() != nullptr && layer.attention()->window > 0)
      return layer.attention()->window;
  return 0;
}

Json sliding_window(const DecoderValue& value) {
  const int64_t window = window_of(value);
  return window > 0 ? Json(window) : Json();
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
  const auto scalar = static_cast<double>(integer(j, "query_pre_attn_scalar"));
  for (LayerValue& layer : value.layers) {
    layer.norm.one_plus = true;
    layer.norm_after = true;
    set_score_scale(*layer.attention(), 1 / std::sqrt(scalar));
  }
  value.final_norm.one_plus = true;
  value.embedding_scale = std::sqrt(static_cast<double>(value.hidden_size));
  value.rounds_embedding_scale = true;
}

void write_gemma(const DecoderValue& value, Json& j) {
  const double scale = value.first_attention()->score_scale();
  const double scalar = std::round(1 / (scale * scale));
  // Written as an integer, as transformers requires.
  j.set("query_pre_attn_scalar",
        scalar < 0x1p53 ? Json(static_cast<int64_t>(scalar)) : Json(scalar));
  j.set("use_bidirectional_attention", false);
}

namespace {

// Names by their numbers in id2label, or LABEL_0, LABEL_1, ... if the key is absent.
std::vector<std::string> label_names(const Json& j) {
  std::vector<std::string> names;
  const Json* labels = present(j, "id2label");
  if (labels == nullptr || !labels->is_object() || labels->as_object().empty()) {
    const int64_t count = integer(j, "num_labels", 2);
    MG_CHECK(count <= kMaxVocabulary, "config.json has num_labels = {}; it must lie in [1, {}]",
             count, kMaxVocabulary);
    for (int64_t i = 0; i < count; ++i) names.push_back("LABEL_" + std::to_string(i));
    return names;
  }
  for (size_t i = 0; i < labels->as_object().size(); ++i) {
    const Json* name = labels->find(std::to_string(i));
    MG_CHECK(name != nullptr,
             "config.json has {} labels in id2label, but none with the number {}; they must be "
             "numbered from 0 on",
             labels->as_object().size(), i);
    names.push_back(name->is_string() ? name->as_string() : name->dump());
  }
  return names;
}

constexpr const char* kMultiLabel = "multi_label_classification";

ScoreProblem score_problem(const std::string& name, int64_t labels) {
  if (name.empty()) return ScoreProblem::unnamed;
  if (name == kMultiLabel) return ScoreProblem::multi_label;
  return labels == 1 && name != "regression" ? ScoreProblem::classification
                                             : ScoreProblem::by_labels;
}

}  // namespace

void read_score_head(const Json& j, DecoderValue& value) {
  const std::string problem = text(j, "problem_type", "");
  value.score_label_names = label_names(j);
  value.score_labels = std::ssize(value.score_label_names);
  value.score_problem = score_problem(problem, value.score_labels);
  if (const Json* pad = present(j, "pad_token_id"))
    value.score_pad_token = read("pad_token_id", [pad] { return pad->as_integer(); });
  MG_CHECK(problem != "regression" || value.score_labels == 1,
           "config.json has problem_type = regression and {} labels; one is supported",
           value.score_labels);
  MG_CHECK(problem != kMultiLabel || value.score_labels > 1,
           "config.json has problem_type = {} and one label; it needs at least two", kMultiLabel);
  value.untied = true;
  value.logits_scale = 1;
  value.logits_soft_cap = 0;
}

void write_score_head(const DecoderValue& value, Json& j) {
  Json::Object names, numbers;
  for (int64_t i = 0; i < value.score_labels; ++i) {
    const std::string& label = value.score_label_names[static_cast<size_t>(i)];
    names.emplace_back(std::to_string(i), label);
    numbers.emplace_back(label, i);
  }
  j.set("id2label", std::move(names));
  j.set("label2id", std::move(numbers));
  j.set("pad_token_id", value.score_pad_token >= 0 ? Json(value.score_pad_token) : Json());
  if (value.score_problem == ScoreProblem::unnamed) return;
  if (value.score_problem == ScoreProblem::multi_label) return j.set("problem_type", kMultiLabel);
  const bool regression = value.score_labels == 1 && value.score_problem == ScoreProblem::by_labels;
  j.set("problem_type", regression ? "regression" : "single_label_classification");
}

FamilyTensors llama_tensors(const DecoderValue& value, std::vector<TensorName> layer_norms) {
  FamilyTensors map{.layer_prefix = "model.layers.*.",
                    .outside = {{"embedding", "model.embed_tokens"},
                                {"final_norm", "model.norm"},
                                {"output", "lm_head"}},
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

FamilyTensors llama_tensors(const DecoderValue& value) {
  return llama_tensors(
      value, {{"attention_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}});
}

FamilyTensors gemma_tensors(const DecoderValue& value) {
  return llama_tensors(value, {{"attention_norm", "input_layernorm"},
                               {"attention_post_norm", "post_attention_layernorm"},
                               {"mlp_norm", "pre_feedforward_layernorm"},
                               {"mlp_post_norm", "post_feedforward_layernorm"}});
}

}  // namespace megatron::models
