// DistilBERT (Sanh et al. 2019): BERT's layers without token types and pooler, under other names.
#include "models/families/all.h"
#include "models/families/encoder_json.h"

namespace megatron::models {
namespace distilbert {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
  "activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "max_position_embeddings": 512,
  "initializer_range": 0.02, "pad_token_id": 0, "tie_word_embeddings": true})";

constexpr std::string_view kClass = "DistilBert";
constexpr double kEpsilon = 1e-12;  // whatever the file says
constexpr HeadTransform kDense{.kind = HeadTransform::Kind::dense,
                               .activation = kernels::Activation::relu};

// This family's keys and BERT's.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"dim", "hidden_size"},
    {"n_layers", "num_hidden_layers"},
    {"n_heads", "num_attention_heads"},
    {"hidden_dim", "intermediate_size"},
    {"activation", "hidden_act"},
    {"dropout", "hidden_dropout_prob"},
    {"attention_dropout", "attention_probs_dropout_prob"}};

DecoderValue read(const Json& j) {
  refuse_unless(j, "sinusoidal_pos_embds", false);
  Json as_bert = j;
  for (const auto& [ours, berts] : kNames) as_bert.set(berts, Json(j[ours]));
  as_bert.set("layer_norm_eps", kEpsilon);
  DecoderValue value = read_bert_layers(as_bert);
  const LayerValue& layer = value.layers[0];
  using enum EncoderHead;
  set_head(
      j, encoder_head(j, kClass, {masked, sequence, tokens, answers}),
      {.masked = {.activation = layer.mlp()->activation, .norm = layer.norm}, .pooled = kDense},
      value);
  return value;
}

Json write(const DecoderValue& value) {
  const Json as_bert = write_bert_layers(value);
  Json j(Json::Object{});
  for (const auto& [ours, berts] : kNames) j.set(ours, Json(as_bert[berts]));
  for (const std::string_view key :
       {"initializer_range", "max_position_embeddings", "tie_word_embeddings", "vocab_size"})
    j.set(key, Json(as_bert[key]));
  j.set("sinusoidal_pos_embds", false);
  write_head(value, kClass, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  const bool answers = value.scored == ScoredTokens::span;
  return {.layer_prefix = "distilbert.transformer.layer.*.",
          .outside = {{"embedding", "distilbert.embeddings.word_embeddings"},
                      {"position_embedding", "distilbert.embeddings.position_embeddings"},
                      {"embedding_norm", "distilbert.embeddings.LayerNorm"},
                      {"head_transform.dense", "vocab_transform"},
                      {"head_transform.norm", "vocab_layer_norm"},
                      {"output", "vocab_projector"},
                      {"output_bias", "vocab_projector.bias"},
                      {"score_transform.dense", "pre_classifier"},
                      {"score", answers ? "qa_outputs" : "classifier"},
                      {"score_bias", answers ? "qa_outputs.bias" : "classifier.bias"}},
          .layer = {{"attention.qkv", "attention.q_lin", Take::q},
                    {"attention.qkv", "attention.k_lin", Take::k},
                    {"attention.qkv", "attention.v_lin", Take::v},
                    {"attention.output", "attention.out_lin"},
                    {"attention_norm", "sa_layer_norm"},
                    {"mlp.up", "ffn.lin1"},
                    {"mlp.down", "ffn.lin2"},
                    {"mlp_norm", "output_layer_norm"}}};
}

void set_score_head(DecoderValue& value, ScoredTokens scored) { set_scores(value, scored, kDense); }

constexpr DecoderFamily::Key kKeys[] = {{"--num-layers", "n_layers"},
                                        {"--ffn-hidden-size", "hidden_dim"},
                                        {"--hidden-size", "dim"},
                                        {"--num-attention-heads", "n_heads"},
                                        {"--hidden-dropout", "dropout"}};
constexpr std::string_view kBuffers[] = {"vocab_transform.", "vocab_layer_norm.",
                                         "vocab_projector.", "pre_classifier.",
                                         "classifier.",      "qa_outputs."};

}  // namespace distilbert

const DecoderFamily kDistilbert = {.name = "distilbert",
                                   .models = "DistilBERT",
                                   .read = distilbert::read,
                                   .write = distilbert::write,
                                   .tensors = distilbert::tensors,
                                   .defaults = distilbert::kDefaults,
                                   .keys = distilbert::kKeys,
                                   .buffers = distilbert::kBuffers,
                                   .has_heads = true,
                                   .set_score_head = distilbert::set_score_head,
                                   .base_prefix = "distilbert."};

}  // namespace megatron::models
