// Phi-3, Phi-3.5 mini and Phi-4 (Abdin et al. 2024): Llama with fused matrices, longrope scaling
// and partly rotated heads.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace phi3 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
  "num_attention_heads": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0,
  "hidden_act": "silu", "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
  "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
  "rope_theta": 10000.0, "partial_rotary_factor": 1.0})";

constexpr CommonForm kForm{.partial_rotary = true};

// "su" and "yarn" are older names of longrope, and there is no other scaling.
Json with_longrope(Json j) {
  for (const auto* key : {"rope_parameters", "rope_scaling"}) {
    const Json* block = present(j, key);
    if (block == nullptr || !block->is_object()) continue;
    const std::string type = text(*block, "rope_type", text(*block, "type", "default"));
    MG_CHECK(type == "default" || type == "longrope" || type == "su" || type == "yarn",
             "config.json has {}.rope_type = {}; a phi3 model supports default and longrope", key,
             type);
    Json renamed = *block;
    if (type != "default") renamed.set("rope_type", "longrope");
    j.set(key, std::move(renamed));
  }
  return j;
}

DecoderValue read(const Json& given) {
  const Json j = with_longrope(given);
  DecoderValue value = read_common(j, kForm);
  value.hidden_dropout = number(j, "resid_pdrop");
  const double embedding_dropout = number(j, "embd_pdrop");
  MG_CHECK(embedding_dropout == 0 || embedding_dropout == value.hidden_dropout,
           "config.json has embd_pdrop = {} and resid_pdrop = {}; both are the same dropout here: "
           "make them equal",
           embedding_dropout, value.hidden_dropout);
  read_window(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  const auto rotary = value.rotary.find(value.first_attention()->rotary);
  if (rotary != value.rotary.end() && rotary->second.original_positions > 0)
    j.set("original_max_position_embeddings", rotary->second.original_positions);
  j.set("architectures", Json::Array{"Phi3ForCausalLM"});
  j.set("embd_pdrop", value.hidden_dropout);
  j.set("pad_token_id", Json());  // otherwise transformers assumes 32000 for any vocabulary
  j.set("resid_pdrop", value.hidden_dropout);
  j.set("sliding_window", sliding_window(value));
  return j;
}

FamilyTensors tensors(const DecoderValue&) {
  return {.layer_prefix = "model.layers.*.",
          .outside = {{"embedding", "model.embed_tokens"},
                      {"final_norm", "model.norm"},
                      {"output", "lm_head"}},
          .layer = {{"attention_norm", "input_layernorm"},
                    {"attention.qkv", "self_attn.qkv_proj"},
                    {"attention.output", "self_attn.o_proj"},
                    {"mlp_norm", "post_attention_layernorm"},
                    {"mlp.up", "mlp.gate_up_proj"},
                    {"mlp.down", "mlp.down_proj"}}};
}

constexpr DecoderFamily::Key kKeys[] = {{"--hidden-dropout", "resid_pdrop"}};

}  // namespace phi3

const DecoderFamily kPhi3 = {.name = "phi3",
                             .models = "Phi-3, Phi-3.5 mini, Phi-4",
                             .read = phi3::read,
                             .write = phi3::write,
                             .tensors = phi3::tensors,
                             .defaults = phi3::kDefaults,
                             .keys = phi3::kKeys,
                             .score_class = "Phi3ForSequenceClassification"};

}  // namespace megatron::models
