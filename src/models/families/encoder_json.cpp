#include "models/families/encoder_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace megatron::models {
namespace {

constexpr std::array<std::string_view, 6> kClasses = {
    "ForPreTraining",         "ForMaskedLM",          "ForSequenceClassification",
    "ForTokenClassification", "ForQuestionAnswering", "Model"};

std::string class_of(std::string_view prefix, EncoderHead head) {
  return std::string(prefix) + std::string(kClasses[static_cast<size_t>(head)]);
}

}  // namespace

EncoderHead encoder_head(const Json& j, std::string_view prefix, std::vector<EncoderHead> known) {
  const Json* names = present(j, "architectures");
  if (names == nullptr) return EncoderHead::masked;
  const bool listed = names->is_array() && !names->as_array().empty() &&
                      std::ranges::all_of(names->as_array(), &Json::is_string);
  MG_CHECK(listed, "config.json has architectures = {}; it must be a list of names", names->dump());
  const std::string& name = names->as_array()[0].as_string();
  known.push_back(EncoderHead::none);
  std::vector<std::string> classes;
  for (const EncoderHead head : known) {
    classes.push_back(class_of(prefix, head));
    if (classes.back() == name) return head;
  }
  fail("config.json has architectures = '{}'; supported: {}", name, fmt::join(classes, ", "));
}

EncoderHead head_of(const DecoderValue& value) {
  if (value.headless) return EncoderHead::none;
  if (value.score_labels == 0)
    return value.pair_head ? EncoderHead::pretraining : EncoderHead::masked;
  switch (value.scored) {
    case ScoredTokens::each_token: return EncoderHead::tokens;
    case ScoredTokens::span: return EncoderHead::answers;
    default: return EncoderHead::sequence;
  }
}

void write_head(const DecoderValue& value, std::string_view prefix, Json& j) {
  const EncoderHead head = head_of(value);
  j.set("architectures", Json::Array{class_of(prefix, head)});
  j.set("pad_token_id", value.score_pad_token >= 0 ? Json(value.score_pad_token) : Json());
  if (head != EncoderHead::sequence && head != EncoderHead::tokens) return;
  write_score_head(value, j);
}

void set_scores(DecoderValue& value, ScoredTokens scored,
                const std::optional<HeadTransform>& pooled,
                const std::optional<HeadTransform>& each_token) {
  const bool of_tokens = scored == ScoredTokens::each_token || scored == ScoredTokens::span;
  value.score_transform = of_tokens ? each_token : pooled;
  value.scored = of_tokens ? scored : ScoredTokens::first_token;
  value.head_transform.reset();
  value.output_bias = value.pair_head = value.predicts_masked = value.headless = false;
  value.score_bias = true;
  value.untied = true;
}

void set_head(const Json& j, EncoderHead head, const EncoderHeads& heads, DecoderValue& value) {
  value.score_pad_token = count(j, "pad_token_id");
  if (head == EncoderHead::none) {
    value.headless = value.untied = true;
    value.head_transform = heads.masked;
    return;
  }
  if (head == EncoderHead::pretraining || head == EncoderHead::masked) {
    value.predicts_masked = true;
    value.head_transform = heads.masked;
    value.output_bias = heads.output_bias;
    value.pair_head = head == EncoderHead::pretraining;
    value.untied = !boolean(j, "tie_word_embeddings", true);
    return;
  }
  if (head == EncoderHead::answers) {
    value.score_label_names = {"start", "end"};
    value.score_labels = 2;
  } else {
    read_score_head(j, value);
  }
  set_scores(value,
             head == EncoderHead::tokens    ? ScoredTokens::each_token
             : head == EncoderHead::answers ? ScoredTokens::span
                                            : ScoredTokens::first_token,
             heads.pooled, heads.each_token);
}

void check_heads(int64_t hidden_size, int64_t heads) {
  MG_CHECK(hidden_size % heads == 0,
           "config.json has hidden_size = {}, which is not a multiple of num_attention_heads = {}",
           hidden_size, heads);
}

DecoderValue read_bert_layers(const Json& j) {
  refuse_unless(j, "is_decoder", false);
  refuse_unless(j, "add_cross_attention", false);
  DecoderValue value;
  value.hidden_size = integer(j, "hidden_size");
  value.vocab_size = integer(j, "vocab_size");
  value.max_position_embeddings = integer(j, "max_position_embeddings");
  value.hidden_dropout = number(j, "hidden_dropout_prob");
  value.attention_dropout = number(j, "attention_probs_dropout_prob");
  value.init_method_std = number(j, "initializer_range");
  const int64_t heads = integer(j, "num_attention_heads"),
                layers = layer_count(j, "num_hidden_layers");
  check_heads(value.hidden_size, heads);
  const nn::NormConfig norm{.epsilon = positive(j, "layer_norm_eps")};
  const LayerValue layer{.mixer = nn::AttentionConfig{.heads = heads,
                                                      .kv_heads = heads,
                                                      .head_size = value.hidden_size / heads,
                                                      .qkv_bias = true,
                                                      .output_bias = true,
                                                      .two_sided = true},
                         .feed_forward = nn::MlpConfig{.ffn = integer(j, "intermediate_size"),
                                                       .activation = activation(j, "hidden_act"),
                                                       .bias = true},
                         .norm = norm,
                         .norm_before = false,
                         .norm_of_sum = true};
  value.layers.assign(static_cast<size_t>(layers), layer);
  value.learned_positions = true;
  value.embedding_norm = norm;
  value.final_norm = norm;
  value.has_final_norm = false;
  return value;
}

Json write_bert_layers(const DecoderValue& value) {
  const nn::AttentionConfig* a = value.first_attention();
  const nn::MlpConfig* mlp = value.first_mlp();
  MG_CHECK(a != nullptr && mlp != nullptr, "a model without attention or without an MLP");
  Json j(Json::Object{});
  j.set("add_cross_attention", false);
  j.set("attention_probs_dropout_prob", value.attention_dropout);
  j.set("hidden_act", activation_name(mlp->activation));
  j.set("hidden_dropout_prob", value.hidden_dropout);
  j.set("hidden_size", value.hidden_size);
  j.set("initializer_range", value.init_method_std);
  j.set("intermediate_size", mlp->ffn);
  j.set("is_decoder", false);
  j.set("layer_norm_eps", value.layers[0].norm.epsilon);
  j.set("max_position_embeddings", value.max_position_embeddings);
  j.set("num_attention_heads", a->heads);
  j.set("num_hidden_layers", value.num_layers());
  j.set("tie_word_embeddings", value.score_labels > 0 || value.headless || !value.untied);
  j.set("use_cache", true);
  j.set("vocab_size", value.vocab_size);
  return j;
}

FamilyTensors bert_tensors(const std::string& prefix) {
  return {.layer_prefix = prefix + "encoder.layer.*.",
          .outside = {},
          .layer = {{"attention.qkv", "attention.self.query", Take::q},
                    {"attention.qkv", "attention.self.key", Take::k},
                    {"attention.qkv", "attention.self.value", Take::v},
                    {"attention.output", "attention.output.dense"},
                    {"attention_norm", "attention.output.LayerNorm"},
                    {"mlp.up", "intermediate.dense"},
                    {"mlp.down", "output.dense"},
                    {"mlp_norm", "output.LayerNorm"}}};
}

void name_score_head(std::string_view bias, FamilyTensors& map) {
  map.outside.push_back({"score", bias.substr(0, bias.rfind('.'))});
  map.outside.push_back({"score_bias", bias});
}

}  // namespace megatron::models
