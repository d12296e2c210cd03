// Stores any decoder, including those that no other family can express: config.json holds the
// DecoderValue itself, and tensors have this program's names. transformers does not know this type.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"
#include "models/families/encoder_json.h"

namespace megatron::models {
namespace megatron {

DecoderValue read(const Json& j) {
  const Json* model = present(j, "model");
  MG_CHECK(model != nullptr,
           "config.json has no 'model', which describes a model of type megatron");
  DecoderValue value = decoder_from_json(*model);
  value.hidden_dropout = number(j, "hidden_dropout", 0);
  value.attention_dropout = number(j, "attention_dropout", 0);
  value.init_method_std = number(j, "initializer_range", 0.02);
  return value;
}

Json write(const DecoderValue& value) {
  Json j(Json::Object{});
  j.set("attention_dropout", value.attention_dropout);
  j.set("hidden_dropout", value.hidden_dropout);
  j.set("initializer_range", value.init_method_std);
  j.set("model", to_json(value));
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  return {.layer_prefix = "layers.*.",
          .outside = {{"embedding", "embedding"},
                      {"position_embedding", "position_embedding"},
                      {"encoder_norm", "encoder_norm"},
                      {"final_norm", "final_norm"},
                      {"output", "output"},
                      {"score", "score"},
                      {"token_type_embedding", "token_type_embedding"},
                      {"embedding_norm", "embedding_norm"},
                      {"head_transform", "head_transform"},
                      {"output_bias", "output_bias"},
                      {"pooler", "pooler"},
                      {"pair", "pair"},
                      {"pair_bias", "pair_bias"},
                      {"score_transform", "score_transform"},
                      {"score_bias", "score_bias"}},
          .layer = {{"attention_norm", "attention_norm"},
                    {"attention_post_norm", "attention_post_norm"},
                    {"attention", "attention"},
                    {"cross_attention_norm", "cross_attention_norm"},
                    {"cross_attention_post_norm", "cross_attention_post_norm"},
                    {"cross_attention", "cross_attention"},
                    {"mlp_norm", "mlp_norm"},
                    {"mlp_post_norm", "mlp_post_norm"},
                    {"mlp", "mlp"},
                    {"embedding_norm", "embedding_norm"},
                    {"hidden_norm", "hidden_norm"},
                    {"projection", "projection"},
                    {"final_norm", "final_norm"}}};
}

// An encoder classifies texts through BERT's pooler.
void set_score_head(DecoderValue& value, ScoredTokens scored) {
  if (value.predicts_masked || value.headless)
    set_scores(value, scored, HeadTransform{.kind = HeadTransform::Kind::pooler});
}

// Flags appear under their own names in the file.
constexpr DecoderFamily::Key kKeys[] = {{"--", ""}};
// Tensors of an encoder's head, which a model with another head ignores.
constexpr std::string_view kBuffers[] = {"head_transform.", "output_bias", "pooler.", "pair.",
                                         "pair_bias"};

}  // namespace megatron

const DecoderFamily kMegatron = {.name = "megatron",
                                 .models = "any decoder or encoder that flags describe",
                                 .read = megatron::read,
                                 .write = megatron::write,
                                 .tensors = megatron::tensors,
                                 .keys = megatron::kKeys,
                                 .buffers = megatron::kBuffers,
                                 .set_score_head = megatron::set_score_head,
                                 .base_prefix = ""};

}  // namespace megatron::models
