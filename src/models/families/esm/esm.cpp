// ESM-2 (Lin et al. 2023): a pre-norm encoder of proteins with rotary positions, which leaves out
// the embeddings of masked tokens.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/encoder_json.h"

namespace megatron::models {
namespace esm {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 33, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
  "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 1026, "initializer_range": 0.02,
  "layer_norm_eps": 1e-12, "pad_token_id": 1, "mask_token_id": 32, "rope_theta": 10000.0,
  "position_embedding_type": "absolute", "token_dropout": false, "emb_layer_norm_before": false,
  "tie_word_embeddings": true})";

constexpr std::string_view kClass = "Esm";
constexpr HeadTransform kPooler{.kind = HeadTransform::Kind::pooler};

DecoderValue read(const Json& j) {
  const std::string positions = text(j, "position_embedding_type");
  MG_CHECK(positions == "rotary",
           "config.json has position_embedding_type = '{}'; only rotary, that of ESM-2, is "
           "supported",
           positions);
  refuse_unless(j, "is_folding_model", false);
  DecoderValue value = read_bert_layers(j);
  for (LayerValue& layer : value.layers) {
    layer.norm_before = true;
    layer.norm_of_sum = false;
    layer.attention()->rotary = "default";
  }
  value.rotary["default"] = {.base = positive(j, "rope_theta")};
  value.learned_positions = false;
  value.has_final_norm = true;
  if (!boolean(j, "emb_layer_norm_before")) value.embedding_norm.reset();
  if (boolean(j, "token_dropout")) value.left_out_token = count(j, "mask_token_id");
  using enum EncoderHead;
  set_head(j, encoder_head(j, kClass, {masked, sequence, tokens}),
           {.masked = {.activation = kernels::Activation::gelu_erf, .norm = value.final_norm},
            .pooled = kPooler},
           value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_bert_layers(value);
  const auto rotary = value.rotary.find("default");
  j.set("emb_layer_norm_before", value.embedding_norm.has_value());
  j.set("is_folding_model", false);
  j.set("mask_token_id", value.left_out_token >= 0 ? value.left_out_token : 32);
  j.set("position_embedding_type", "rotary");
  j.set("rope_theta", rotary == value.rotary.end() ? 10000.0 : rotary->second.base);
  j.set("token_dropout", value.left_out_token >= 0);
  write_head(value, kClass, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = bert_tensors("esm.");
  map.layer = {{"attention_norm", "attention.LayerNorm"},
               {"attention.qkv", "attention.self.query", Take::q},
               {"attention.qkv", "attention.self.key", Take::k},
               {"attention.qkv", "attention.self.value", Take::v},
               {"attention.output", "attention.output.dense"},
               {"mlp_norm", "LayerNorm"},
               {"mlp.up", "intermediate.dense"},
               {"mlp.down", "output.dense"}};
  const bool pooled = value.score_transform.has_value();
  map.outside = {{"embedding", "esm.embeddings.word_embeddings"},
                 {"embedding_norm", "esm.embeddings.layer_norm"},
                 {"final_norm", "esm.encoder.emb_layer_norm_after"},
                 {"head_transform.dense", "lm_head.dense"},
                 {"head_transform.norm", "lm_head.layer_norm"},
                 {"output", "lm_head.decoder"},
                 {"output_bias", "lm_head.bias"},
                 {"score_transform.dense", "classifier.dense"}};
  name_score_head(pooled ? "classifier.out_proj.bias" : "classifier.bias", map);
  return map;
}

void set_score_head(DecoderValue& value, ScoredTokens scored) {
  set_scores(value, scored, kPooler);
}

// Files also have a head for contacts, a table of positions that rotary models do not use, and in
// every layer the angles.
constexpr std::string_view kBuffers[] = {"lm_head.",
                                         "classifier.",
                                         "pooler.",
                                         "contact_head.",
                                         "embeddings.position_embeddings.weight",
                                         "encoder.layer.*.attention.self.rotary_embeddings."};

}  // namespace esm

const DecoderFamily kEsm = {.name = "esm",
                            .models = "ESM-2",
                            .read = esm::read,
                            .write = esm::write,
                            .tensors = esm::tensors,
                            .defaults = esm::kDefaults,
                            .keys = kBertKeys,
                            .buffers = esm::kBuffers,
                            .has_heads = true,
                            .set_score_head = esm::set_score_head,
                            .base_prefix = "esm."};

}  // namespace megatron::models
