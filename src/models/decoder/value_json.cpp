// Converts a decoder's value to JSON and back, with one list of fields each for model, layers,
// norms and rotary positions.
#include <array>
#include <set>

#include "base/error.h"
#include "models/decoder/feed_forwards/all.h"
#include "models/decoder/mixers/all.h"
#include "models/decoder/value_checks.h"

namespace megatron::models {
namespace {

// Names of an enumeration's values, in their order.
template <class E>
constexpr int kNames = 0;
template <>
constexpr std::array kNames<nn::Normalization> = {"LayerNorm", "RMSNorm"};
template <>
constexpr std::array kNames<kernels::Activation> = {"gelu_tanh", "gelu_erf",     "silu",
                                                    "relu",      "squared_relu", "quick_gelu"};
template <>
constexpr std::array kNames<nn::QkNorm> = {"none", "head", "full-width", "l2"};
template <>
constexpr std::array kNames<kernels::GateOrder> = {"gate-first", "norm-first", "gate-only"};
template <>
constexpr std::array kNames<nn::Sinks> = {"none", "zero", "learned"};
template <>
constexpr std::array kNames<LayerValue::Order> = {"sequential", "parallel", "parallel-one-norm"};
template <>
constexpr std::array kNames<nn::RopeScaling> = {"none",   "linear", "dynamic",
                                                "llama3", "yarn",   "longrope"};
template <>
constexpr std::array kNames<kernels::RouterScore> = {"softmax", "sigmoid", "sqrtsoftplus"};
template <>
constexpr std::array kNames<ScoreProblem> = {"by-labels", "unnamed", "classification",
                                             "multi-label"};
template <>
constexpr std::array kNames<ScoredTokens> = {"last-token", "first-token", "mean", "each-token",
                                             "span"};
template <>
constexpr std::array kNames<HeadTransform::Kind> = {"dense-norm", "dense", "pooler"};

// Calls f(name, field, always) for each field: `always` are written whatever their value.
constexpr auto kNorm = [](auto& n, auto&& f) {
  f("normalization", n.kind, true);
  f("norm-epsilon", n.epsilon, true);
  f("norm-bias", n.bias, false);
  f("layernorm-1p", n.one_plus, false);
};

constexpr auto kHeadTransform = [](auto& t, auto&& f) {
  f("kind", t.kind, true);
  f("activation", t.activation, false);
  f("bias", t.bias, false);
  kNorm(t.norm, f);
};

constexpr auto kRotary = [](auto& r, auto&& f) {
  f("rotary-base", r.base, true);
  f("rotary-percent", r.fraction, false);
  f("rotary-interleaved", r.interleaved, false);
  f("rope-scaling", r.scaling, false);
  f("rope-scaling-factor", r.factor, false);
  f("original-max-position-embeddings", r.original_positions, false);
  f("low-freq-factor", r.low_freq_factor, false);
  f("high-freq-factor", r.high_freq_factor, false);
  f("beta-fast", r.beta_fast, false);
  f("beta-slow", r.beta_slow, false);
  f("mscale", r.mscale, false);
  f("mscale-all-dim", r.mscale_all_dim, false);
  f("attention-factor", r.attention_factor, false);
  f("correction-range-round-to-int", r.truncate, false);
  f("short-factor", r.short_factor, false);
  f("long-factor", r.long_factor, false);
};

constexpr auto kLayer = [](auto& l, auto&& f) {
  f("layer-order", l.order, false);
  f("norm-before", l.norm_before, false);
  f("norm-after", l.norm_after, false);
  f("norm-of-sum", l.norm_of_sum, false);
  f("mixer-norm", l.mixer_norm, false);
  f("residual-multiplier", l.residual_multiplier, false);
};

constexpr auto kModel = [](auto& v, auto&& f) {
  f("vocab-size", v.vocab_size, true);
  f("hidden-size", v.hidden_size, true);
  f("max-position-embeddings", v.max_position_embeddings, true);
  f("learned-positions", v.learned_positions, false);
  f("position-offset", v.position_offset, false);
  f("token-types", v.token_types, false);
  f("encoder-layers", v.encoder_layers, false);
  f("start-token", v.start_token, false);
  f("left-out-token", v.left_out_token, false);
  f("embedding-multiplier", v.embedding_scale, false);
  f("rounds-embedding-multiplier", v.rounds_embedding_scale, false);
  f("output-multiplier", v.logits_scale, false);
  f("mup-width-multiplier", v.width_multiplier, false);
  f("final-logit-softcapping", v.logits_soft_cap, false);
  f("untied", v.untied, true);
  f("has-final-norm", v.has_final_norm, false);
  f("predicts-masked", v.predicts_masked, false);
  f("headless", v.headless, false);
  f("output-bias", v.output_bias, false);
  f("pair-head", v.pair_head, false);
  f("score-labels", v.score_labels, false);
  f("score-pad-token", v.score_pad_token, false);
  f("score-label-names", v.score_label_names, false);
  f("score-problem", v.score_problem, false);
  f("scored-tokens", v.scored, false);
  f("score-bias", v.score_bias, false);
};

template <class T>
Json json_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return Json(kNames<T>[static_cast<size_t>(value)]);
  } else if constexpr (std::is_same_v<T, std::vector<double>> ||
                       std::is_same_v<T, std::vector<std::string>>) {
    return Json(Json::Array(value.begin(), value.end()));
  } else {
    return Json(value);
  }
}

// Writes the fields that are not those of a plain T.
template <class T>
void write(Json::Object& to, const T& value, auto fields) {
  std::vector<Json> defaults;
  const T plain{};
  fields(plain,
         [&](std::string_view, const auto& field, bool) { defaults.push_back(json_of(field)); });
  size_t at = 0;
  fields(value, [&](std::string_view name, const auto& field, bool always) {
    Json json = json_of(field);
    if (always || !(json == defaults[at])) to.emplace_back(name, std::move(json));
    ++at;
  });
}

// Reads fields by their names; absent fields keep their defaults. Records the known names.
class Reader {
 public:
  explicit Reader(const Json& from) : from_(from) {
    MG_CHECK(from.is_object(), "a model's description is {}; it must be a JSON object",
             from.dump());
  }
  template <class T>
  void operator()(std::string_view name, T& field, bool always) {
    known_.emplace(name);
    const Json* json = from_.find(name);
    MG_CHECK(json != nullptr || !always, "the model's description has no '{}'", name);
    if (json == nullptr) return;
    try {
      read(*json, field);
    } catch (const Error& error) {
      fail("the model's description has {} = {}: {}", name, json->dump(), error.what());
    }
  }
  const Json* object(std::string_view name) {
    known_.emplace(name);
    return from_.find(name);
  }
  void refuse_unknown() const {
    for (const auto& [name, value] : from_.as_object())
      MG_CHECK(known_.contains(name), "the model's description has an unknown '{}'", name);
  }

 private:
  static void read(const Json& json, int64_t& to) { to = json.as_integer(); }
  static void read(const Json& json, double& to) { to = json.as_number(); }
  static void read(const Json& json, bool& to) { to = json.as_bool(); }
  static void read(const Json& json, std::string& to) { to = json.as_string(); }
  static void read(const Json& json, std::vector<double>& to) {
    for (const Json& number : json.as_array()) to.push_back(number.as_number());
  }
  static void read(const Json& json, std::vector<std::string>& to) {
    for (const Json& text : json.as_array()) to.push_back(text.as_string());
  }
  template <class E>
    requires std::is_enum_v<E>
  static void read(const Json& json, E& to) {
    const std::string& name = json.as_string();
    for (size_t i = 0; i < kNames<E>.size(); ++i) {
      if (name != kNames<E>[i]) continue;
      to = static_cast<E>(i);
      return;
    }
    fail("'{}' is unknown", name);
  }

  const Json& from_;
  std::set<std::string, std::less<>> known_;
};

// A value of the kind that `key` names, without one of the first kind.
template <class Value, size_t kIndex = 0>
Value read_part(Reader& reader, std::string_view key) {
  if constexpr (kIndex == std::variant_size_v<Value>) {
    fail("the model's description, {}: '{}' is unknown", key, reader.object(key)->as_string());
  } else {
    using Config = std::variant_alternative_t<kIndex, Value>;
    const Json* kind = reader.object(key);
    const bool found = kind == nullptr || kind->as_string() == LayerPart<Config>::kName;
    if (!found) return read_part<Value, kIndex + 1>(reader, key);
    Config config;
    LayerPart<Config>::fields(config, reader);
    return config;
  }
}

template <class Value>
void write_part(Json::Object& to, std::string_view key, const Value& value) {
  visit_part(value, [&](auto kind, const auto& config) {
    using Kind = decltype(kind);
    if (value.index() != 0) to.emplace_back(key, Kind::kName);
    write(to, config, [](auto& part, auto&& f) { Kind::fields(part, f); });
  });
}

// What cross attention reads; other fields of attention are refused.
constexpr auto kCross = [](auto& a, auto&& f) {
  f("num-attention-heads", a.heads, true);
  f("num-query-groups", a.kv_heads, true);
  f("kv-channels", a.head_size, true);
  f("qkv-bias", a.qkv_bias, true);
  f("attention-output-bias", a.output_bias, true);
  f("softmax-scale", a.scale, false);
};

void write_layer(Json::Object& to, const LayerValue& layer) {
  write_part(to, "mixer", layer.mixer);
  if (layer.cross) {
    Json::Object cross;
    write(cross, *layer.cross, kCross);
    to.emplace_back("cross-attention", std::move(cross));
  }
  write_part(to, "feed-forward", layer.feed_forward);
  write(to, layer.norm, kNorm);
  write(to, layer, kLayer);
}

LayerValue read_layer(Reader& reader) {
  LayerValue layer;
  layer.mixer = read_part<MixerValue>(reader, "mixer");
  if (const Json* cross = reader.object("cross-attention")) {
    Reader of_cross(*cross);
    kCross(layer.cross.emplace(), of_cross);
    of_cross.refuse_unknown();
  }
  layer.feed_forward = read_part<FeedForwardValue>(reader, "feed-forward");
  kNorm(layer.norm, reader);
  kLayer(layer, reader);
  return layer;
}

// Parts that a model may have, as objects of their own.
template <class Model, class F>
void for_each_part(Model& v, F&& f) {
  f("embedding-norm", v.embedding_norm, kNorm);
  f("head-transform", v.head_transform, kHeadTransform);
  f("score-transform", v.score_transform, kHeadTransform);
}

}  // namespace

Json to_json(const DecoderValue& value) {
  Json::Object to = {{"num-layers", value.num_layers()}};
  write(to, value, kModel);
  Json::Array runs;
  int64_t uniform = 0;
  for (size_t i = 0; i < value.layers.size();) {
    size_t end = i + 1;
    while (end < value.layers.size() && value.layers[end] == value.layers[i]) ++end;
    Json::Object run;
    if (end - i < value.layers.size()) run.emplace_back("count", static_cast<int64_t>(end - i));
    write_layer(run, value.layers[i]);
    runs.emplace_back(std::move(run));
    uniform = static_cast<int64_t>(end - i);
    i = end;
  }
  const bool alike = uniform == value.num_layers() && !runs.empty();
  if (alike) {
    for (auto& member : runs[0].as_object()) to.push_back(std::move(member));
  } else {
    to.emplace_back("layers", std::move(runs));
  }
  if (!alike || !(value.final_norm == value.layers[0].norm)) {
    Json::Object norm;
    write(norm, value.final_norm, kNorm);
    to.emplace_back("final-norm", std::move(norm));
  }
  for_each_part(value, [&](std::string_view name, const auto& part, auto fields) {
    if (!part) return;
    Json::Object object;
    write(object, *part, fields);
    to.emplace_back(name, std::move(object));
  });
  if (value.prediction.depths > 0) {
    Json::Object prediction = {{"depths", value.prediction.depths}};
    write_layer(prediction, value.prediction.layer);
    to.emplace_back("prediction", std::move(prediction));
  }
  // One unnamed table is the model's own.
  for (const auto& [name, rotary] : value.rotary) {
    Json::Object table;
    write(table, rotary, kRotary);
    to.emplace_back("rotary." + name, std::move(table));
  }
  return Json(std::move(to));
}

DecoderValue decoder_from_json(const Json& json) {
  DecoderValue value;
  Reader reader(json);
  int64_t layers = 0;
  reader("num-layers", layers, true);
  MG_CHECK(layers > 0 && layers <= kMaxLayers,
           "the model's description has num-layers {}; it must lie in [1, {}]", layers, kMaxLayers);
  kModel(value, reader);
  if (const Json* runs = reader.object("layers")) {
    for (const Json& run : runs->as_array()) {
      Reader of_run(run);
      int64_t count = 1;
      of_run("count", count, false);
      MG_CHECK(count > 0 && count <= layers - value.num_layers(),
               "the model's description, layers: {} more layers are listed than num-layers {}",
               count, layers);
      const LayerValue layer = read_layer(of_run);
      of_run.refuse_unknown();
      value.layers.insert(value.layers.end(), static_cast<size_t>(count), layer);
    }
    MG_CHECK(value.num_layers() == layers,
             "the model's description lists {} layers, but num-layers is {}", value.num_layers(),
             layers);
  } else {
    value.layers.assign(static_cast<size_t>(layers), read_layer(reader));
  }
  value.final_norm = value.layers[0].norm;
  if (const Json* norm = reader.object("final-norm")) {
    Reader of_norm(*norm);
    value.final_norm = {};
    kNorm(value.final_norm, of_norm);
    of_norm.refuse_unknown();
  }
  for_each_part(value, [&](std::string_view name, auto& part, auto fields) {
    const Json* object = reader.object(name);
    if (object == nullptr) return;
    Reader of_part(*object);
    fields(part.emplace(), of_part);
    of_part.refuse_unknown();
  });
  if (const Json* prediction = reader.object("prediction")) {
    Reader of_prediction(*prediction);
    of_prediction("depths", value.prediction.depths, true);
    value.prediction.layer = read_layer(of_prediction);
    of_prediction.refuse_unknown();
  }
  for (const auto& [name, table] : json.as_object()) {
    constexpr std::string_view kPrefix = "rotary.";
    if (!name.starts_with(kPrefix)) continue;
    reader.object(name);
    Reader of_table(table);
    nn::RotaryConfig& rotary = value.rotary[name.substr(kPrefix.size())];
    kRotary(rotary, of_table);
    of_table.refuse_unknown();
  }
  reader.refuse_unknown();
  return value;
}

}  // namespace megatron::models
