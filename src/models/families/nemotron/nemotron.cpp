// Nemotron-4 and Minitron (Parmar et al. 2024): LayerNorm with 1 + w, squared ReLU without a gate,
// half of each head rotated.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace nemotron {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
  "num_attention_heads": 48, "hidden_act": "relu2", "max_position_embeddings": 4096,
  "initializer_range": 0.0134, "norm_eps": 1e-5, "tie_word_embeddings": false,
  "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": false,
  "attention_dropout": 0.0, "mlp_bias": false})";

constexpr CommonForm kForm{.epsilon_key = "norm_eps",
                           .norm = nn::Normalization::layer_norm,
                           .gated = false,
                           .partial_rotary = true,
                           .attention_bias = true,
                           .mlp_bias = true};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  for (LayerValue& layer : value.layers) layer.norm.one_plus = true;
  value.final_norm.one_plus = true;
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  j.set("architectures", Json::Array{"NemotronForCausalLM"});
  return j;
}

constexpr DecoderFamily::Key kKeys[] = {{"--norm-epsilon", "norm_eps"}};

}  // namespace nemotron

const DecoderFamily kNemotron = {.name = "nemotron",
                                 .models = "Nemotron-4, Minitron",
                                 .read = nemotron::read,
                                 .write = nemotron::write,
                                 .tensors = llama_tensors,
                                 .defaults = nemotron::kDefaults,
                                 .keys = nemotron::kKeys,
                                 .score_class = "NemotronForSequenceClassification"};

}  // namespace megatron::models
