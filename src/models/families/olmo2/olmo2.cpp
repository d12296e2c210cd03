// OLMo 2 (OLMo Team 2024): norms after attention and MLP only, queries and keys normalised over all
// heads.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace olmo2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "initializer_range": 0.02, "tie_word_embeddings": false, "rope_theta": 10000.0,
  "attention_bias": false, "attention_dropout": 0.0, "rms_norm_eps": 1e-5})";

constexpr CommonForm kForm{.attention_bias = true, .qk_norm = nn::QkNorm::full_width};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  for (LayerValue& layer : value.layers) {
    layer.norm_before = false;
    layer.norm_after = true;
  }
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  j.set("architectures", Json::Array{"Olmo2ForCausalLM"});
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(value, {{"attention_post_norm", "post_attention_layernorm"},
                               {"mlp_post_norm", "post_feedforward_layernorm"}});
}

}  // namespace olmo2

const DecoderFamily kOlmo2 = {.name = "olmo2",
                              .models = "OLMo 2",
                              .read = olmo2::read,
                              .write = olmo2::write,
                              .tensors = olmo2::tensors,
                              .defaults = olmo2::kDefaults,
                              .score_class = "Olmo2ForSequenceClassification"};

}  // namespace megatron::models
