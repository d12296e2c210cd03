// BERT (Devlin et al. 2019): an encoder with norms of sums, token types and learned positions.
#include "models/families/all.h"
#include "models/families/encoder_json.h"

namespace megatron::models {
namespace bert {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
  "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
  "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
  "tie_word_embeddings": true})";

constexpr std::string_view kClass = "Bert";
constexpr HeadTransform kPooler{.kind = HeadTransform::Kind::pooler};

DecoderValue read(const Json& j) {
  refuse_unless(j, "position_embedding_type", "absolute");
  DecoderValue value = read_bert_layers(j);
  value.token_types = integer(j, "type_vocab_size");
  const LayerValue& layer = value.layers[0];
  using enum EncoderHead;
  set_head(
      j, encoder_head(j, kClass, {pretraining, masked, sequence, tokens, answers}),
      {.masked = {.activation = layer.mlp()->activation, .norm = layer.norm}, .pooled = kPooler},
      value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_bert_layers(value);
  j.set("type_vocab_size", value.token_types);
  write_head(value, kClass, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = bert_tensors("bert.");
  map.outside = {{"embedding", "bert.embeddings.word_embeddings"},
                 {"position_embedding", "bert.embeddings.position_embeddings"},
                 {"token_type_embedding", "bert.embeddings.token_type_embeddings"},
                 {"embedding_norm", "bert.embeddings.LayerNorm"},
                 {"head_transform.dense", "cls.predictions.transform.dense"},
                 {"head_transform.norm", "cls.predictions.transform.LayerNorm"},
                 {"output", "cls.predictions.decoder"},
                 {"output_bias", "cls.predictions.bias"},
                 {"pooler.dense", "bert.pooler.dense"},
                 {"pair", "cls.seq_relationship"},
                 {"pair_bias", "cls.seq_relationship.bias"},
                 {"score_transform.dense", "bert.pooler.dense"}};
  name_score_head(value.scored == ScoredTokens::span ? "qa_outputs.bias" : "classifier.bias", map);
  return map;
}

void set_score_head(DecoderValue& value, ScoredTokens scored) {
  set_scores(value, scored, kPooler);
}

constexpr std::string_view kBuffers[] = {"cls.", "pooler.", "classifier.", "qa_outputs."};

}  // namespace bert

const DecoderFamily kBert = {.name = "bert",
                             .models = "BERT, as pre-trained, masked language model or classifier",
                             .read = bert::read,
                             .write = bert::write,
                             .tensors = bert::tensors,
                             .defaults = bert::kDefaults,
                             .keys = kBertKeys,
                             .buffers = bert::kBuffers,
                             .has_heads = true,
                             .set_score_head = bert::set_score_head,
                             .base_prefix = "bert."};

}  // namespace megatron::models
