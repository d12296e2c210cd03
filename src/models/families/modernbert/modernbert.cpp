// ModernBERT (Warner et al. 2024): an encoder with rotary positions of two bases, layers with a
// window to both sides between those that see all, gated feed-forwards and few biases.
#include <algorithm>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/encoder_json.h"
#include "models/families/rotary_json.h"

namespace megatron::models {
namespace modernbert {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
  "num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192,
  "initializer_range": 0.02, "norm_eps": 1e-5, "norm_bias": false, "pad_token_id": 50283,
  "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "attention_bias": false,
  "attention_dropout": 0.0, "global_attn_every_n_layers": 3, "local_attention": 128,
  "embedding_dropout": 0.0, "mlp_bias": false, "mlp_dropout": 0.0, "decoder_bias": true,
  "classifier_pooling": "cls", "classifier_bias": false, "classifier_activation": "gelu",
  "tie_word_embeddings": true})";

constexpr std::string_view kClass = "ModernBert";

// rope_parameters {"full_attention": {...}, "sliding_attention": {...}}, or global_rope_theta and
// local_rope_theta.
nn::RotaryConfig read_table(const Json& given, std::string_view kind, std::string_view base) {
  Json j = given;
  const Json* both = present(j, "rope_parameters");
  MG_CHECK(both == nullptr || both->is_object(),
           "config.json has rope_parameters = {}; it must be an object", both->dump());
  const Json* block = both == nullptr ? nullptr : present(*both, kind);
  j.set("rope_theta", Json(j[base]));
  if (block == nullptr) return {.base = positive(j, base)};
  return read_rotary_block(j, *block, "rope_parameters." + std::string(kind));
}

// A key is seen if it is at most half of local_attention tokens away.
int64_t window(const Json& j) { return integer(j, "local_attention") / 2 + 1; }

// The transform before the vocabulary and before labels.
HeadTransform transform(const Json& j, std::string_view activation_key,
                        const nn::NormConfig& norm) {
  return {.activation = activation(j, activation_key),
          .bias = boolean(j, "classifier_bias"),
          .norm = norm};
}

DecoderValue read(const Json& j) {
  refuse_unless(j, "sparse_prediction", false);
  DecoderValue value;
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, "max_position_embeddings");
  value.attention_dropout = number(j, "attention_dropout");
  value.hidden_dropout = number(j, "mlp_dropout");
  MG_CHECK(number(j, "embedding_dropout") == value.hidden_dropout,
           "config.json has embedding_dropout = {} and mlp_dropout = {}; only equal ones are "
           "supported",
           number(j, "embedding_dropout"), value.hidden_dropout);
  value.init_method_std = number(j, "initializer_range");
  const int64_t heads = integer(j, "num_attention_heads"),
                layers = layer_count(j, "num_hidden_layers"),
                every = integer(j, "global_attn_every_n_layers");
  check_heads(value.hidden_size, heads);
  const nn::NormConfig norm{.epsilon = positive(j, "norm_eps"), .bias = boolean(j, "norm_bias")};
  const std::vector<bool> listed = listed_layers(j, layers, "sliding_attention");
  for (int64_t i = 0; i < layers; ++i) {
    const bool local = listed.empty() ? i % every != 0 : listed[static_cast<size_t>(i)];
    value.layers.push_back(
        {.mixer = nn::AttentionConfig{.heads = heads,
                                      .kv_heads = heads,
                                      .head_size = value.hidden_size / heads,
                                      .qkv_bias = boolean(j, "attention_bias"),
                                      .output_bias = boolean(j, "attention_bias"),
                                      .window = local ? window(j) : 0,
                                      .two_sided = true,
                                      .rotary = local ? "local" : "global"},
         .feed_forward = nn::MlpConfig{.ffn = integer(j, "intermediate_size"),
                                       .activation = activation(j, "hidden_activation"),
                                       .gated = true,
                                       .bias = boolean(j, "mlp_bias")},
         .norm = norm,
         .mixer_norm = i > 0});
  }
  value.rotary["global"] = read_table(j, "full_attention", "global_rope_theta");
  value.rotary["local"] = read_table(j, "sliding_attention", "local_rope_theta");
  value.embedding_norm = norm;
  value.final_norm = norm;
  const std::string pooling = text(j, "classifier_pooling");
  MG_CHECK(pooling == "cls" || pooling == "mean",
           "config.json has classifier_pooling = '{}'; supported: cls, mean", pooling);
  using enum EncoderHead;
  const EncoderHead head = encoder_head(j, kClass, {masked, sequence, tokens});
  const HeadTransform labels = transform(j, "classifier_activation", norm);
  set_head(j, head,
           {.masked = labels,
            .pooled = labels,
            .each_token = labels,
            .output_bias = boolean(j, "decoder_bias")},
           value);
  if (head == sequence && pooling == "mean") value.scored = ScoredTokens::mean;
  return value;
}

Json write(const DecoderValue& value) {
  const nn::AttentionConfig* a = value.first_attention();
  const nn::MlpConfig* mlp = value.first_mlp();
  MG_CHECK(a != nullptr && mlp != nullptr, "a model without attention or without an MLP");
  const auto& transform = value.score_labels > 0 ? value.score_transform : value.head_transform;
  MG_CHECK(transform.has_value(), "a model without a transform before its output layer");
  Json j(Json::Object{});
  j.set("attention_bias", a->qkv_bias);
  j.set("attention_dropout", value.attention_dropout);
  j.set("classifier_activation", activation_name(transform->activation));
  j.set("classifier_bias", transform->bias);
  j.set("classifier_pooling", value.scored == ScoredTokens::mean ? "mean" : "cls");
  j.set("decoder_bias", value.score_labels > 0 || value.headless || value.output_bias);
  j.set("embedding_dropout", value.hidden_dropout);
  j.set("hidden_activation", activation_name(mlp->activation));
  j.set("hidden_size", value.hidden_size);
  j.set("initializer_range", value.init_method_std);
  j.set("intermediate_size", mlp->ffn);
  Json::Array types;
  int64_t local = 0;
  for (const LayerValue& layer : value.layers) {
    const bool has_window = layer.attention() != nullptr && layer.attention()->window > 0;
    if (has_window) local = std::max<int64_t>(2 * (layer.attention()->window - 1), 1);
    types.emplace_back(has_window ? "sliding_attention" : "full_attention");
  }
  j.set("layer_types", std::move(types));
  j.set("local_attention", local > 0 ? local : 128);
  j.set("max_position_embeddings", value.max_position_embeddings);
  j.set("mlp_bias", mlp->bias);
  j.set("mlp_dropout", value.hidden_dropout);
  j.set("norm_bias", value.final_norm.bias);
  j.set("norm_eps", value.final_norm.epsilon);
  j.set("num_attention_heads", a->heads);
  j.set("num_hidden_layers", value.num_layers());
  const auto table = [&](const std::string& name) {
    const auto found = value.rotary.find(name);
    return write_rotary(found == value.rotary.end() ? nn::RotaryConfig{} : found->second);
  };
  j.set("rope_parameters",
        Json::Object{{"full_attention", table("global")}, {"sliding_attention", table("local")}});
  j.set("tie_word_embeddings", value.score_labels > 0 || value.headless || !value.untied);
  j.set("vocab_size", value.vocab_size);
  write_head(value, kClass, j);
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  return {.layer_prefix = "model.layers.*.",
          .outside = {{"embedding", "model.embeddings.tok_embeddings"},
                      {"embedding_norm", "model.embeddings.norm"},
                      {"final_norm", "model.final_norm"},
                      {"head_transform.dense", "head.dense"},
                      {"head_transform.norm", "head.norm"},
                      {"score_transform.dense", "head.dense"},
                      {"score_transform.norm", "head.norm"},
                      {"output", "decoder"},
                      {"output_bias", "decoder.bias"},
                      {"score", "classifier"},
                      {"score_bias", "classifier.bias"}},
          .layer = {{"attention_norm", "attn_norm"},
                    {"attention.qkv", "attn.Wqkv"},
                    {"attention.output", "attn.Wo"},
                    {"mlp_norm", "mlp_norm"},
                    {"mlp.up", "mlp.Wi"},
                    {"mlp.down", "mlp.Wo"}}};
}

void set_score_head(DecoderValue& value, ScoredTokens scored) {
  const std::optional<HeadTransform> transform = value.head_transform;
  set_scores(value, scored, transform, transform);
}

constexpr DecoderFamily::Key kKeys[] = {{"--hidden-dropout", "mlp_dropout"},
                                        {"--norm-epsilon", "norm_eps"},
                                        {"--window-size", "local_attention"}};
constexpr std::string_view kBuffers[] = {"decoder.", "classifier."};

}  // namespace modernbert

const DecoderFamily kModernbert = {.name = "modernbert",
                                   .models = "ModernBERT",
                                   .read = modernbert::read,
                                   .write = modernbert::write,
                                   .tensors = modernbert::tensors,
                                   .defaults = modernbert::kDefaults,
                                   .keys = modernbert::kKeys,
                                   .buffers = modernbert::kBuffers,
                                   .has_heads = true,
                                   .set_score_head = modernbert::set_score_head};

}  // namespace megatron::models
