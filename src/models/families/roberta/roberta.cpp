// RoBERTa (Liu et al. 2019): BERT without pairs of texts, whose positions begin after the padding
// token's number.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/encoder_json.h"

namespace megatron::models {
namespace roberta {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
  "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
  "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 1,
  "tie_word_embeddings": true})";

constexpr std::string_view kClass = "Roberta";
constexpr HeadTransform kPooler{.kind = HeadTransform::Kind::pooler};

// Text positions count from pad_token_id + 1.
DecoderValue read(const Json& j) {
  refuse_unless(j, "position_embedding_type", "absolute");
  DecoderValue value = read_bert_layers(j);
  value.token_types = integer(j, "type_vocab_size");
  value.position_offset = count(j, "pad_token_id") + 1;
  value.max_position_embeddings -= value.position_offset;
  MG_CHECK(
      value.max_position_embeddings > 0,
      "config.json has max_position_embeddings = {} and pad_token_id = {}: no position is left "
      "for a text",
      integer(j, "max_position_embeddings"), count(j, "pad_token_id"));
  const LayerValue& layer = value.layers[0];
  using enum EncoderHead;
  set_head(j, encoder_head(j, kClass, {masked, sequence, tokens, answers}),
           {.masked = {.activation = kernels::Activation::gelu_erf, .norm = layer.norm},
            .pooled = kPooler},
           value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_bert_layers(value);
  j.set("max_position_embeddings", value.max_position_embeddings + value.position_offset);
  j.set("type_vocab_size", value.token_types);
  write_head(value, kClass, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = bert_tensors("roberta.");
  map.outside = {{"embedding", "roberta.embeddings.word_embeddings"},
                 {"position_embedding", "roberta.embeddings.position_embeddings"},
                 {"token_type_embedding", "roberta.embeddings.token_type_embeddings"},
                 {"embedding_norm", "roberta.embeddings.LayerNorm"},
                 {"head_transform.dense", "lm_head.dense"},
                 {"head_transform.norm", "lm_head.layer_norm"},
                 {"output", "lm_head.decoder"},
                 {"output_bias", "lm_head.bias"},
                 {"score_transform.dense", "classifier.dense"}};
  const bool pooled = value.score_transform.has_value(),
             answers = value.scored == ScoredTokens::span;
  name_score_head(answers  ? "qa_outputs.bias"
                  : pooled ? "classifier.out_proj.bias"
                           : "classifier.bias",
                  map);
  return map;
}

void set_score_head(DecoderValue& value, ScoredTokens scored) {
  set_scores(value, scored, kPooler);
}

constexpr std::string_view kBuffers[] = {"lm_head.", "pooler.", "classifier.", "qa_outputs."};

}  // namespace roberta

const DecoderFamily kRoberta = {.name = "roberta",
                                .models = "RoBERTa",
                                .read = roberta::read,
                                .write = roberta::write,
                                .tensors = roberta::tensors,
                                .defaults = roberta::kDefaults,
                                .keys = kBertKeys,
                                .buffers = roberta::kBuffers,
                                .has_heads = true,
                                .set_score_head = roberta::set_score_head,
                                .base_prefix = "roberta."};

}  // namespace megatron::models
