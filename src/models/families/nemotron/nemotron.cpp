// Nemotron-4 and Minitron (Parmar et al. 2024): LayerNorm with 1 + w, squared ReLU without a gate, half of each
// head rotated.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace nemotron {
namespace {

constexpr CommonDefaults kDefaults{.norm_epsilon = 1e-5,
                                   .rotary_fraction = 0.5,
                                   .activation = "relu2",
                                   .epsilon_key = "norm_eps",
                                   .norm = nn::Normalization::layer_norm,
                                   .gated = false};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kDefaults);
  const bool attention_bias = boolean(j, "attention_bias", false),
             mlp_bias = boolean(j, "mlp_bias", false);
  for (LayerValue& layer : value.layers) {
    layer.norm.one_plus = true;
    layer.attention()->qkv_bias = layer.attention()->output_bias = attention_bias;
    layer.mlp()->bias = mlp_bias;
  }
  value.final_norm.one_plus = true;
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kDefaults);
  j.set("architectures", Json::Array{"NemotronForCausalLM"});
  j.set("attention_bias", value.first_attention()->qkv_bias);
  j.set("mlp_bias", value.first_mlp()->bias);
  j.set("model_type", "nemotron");
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(
      value, {{"attention_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}});
}

constexpr DecoderFamily::Key kKeys[] = {{"--norm-epsilon", "norm_eps"}};

}  // namespace
}  // namespace nemotron

const DecoderFamily kNemotron = {.name = "nemotron",
                                 .models = "Nemotron-4, Minitron",
                                 .read = nemotron::read,
                                 .write = nemotron::write,
                                 .tensors = nemotron::tensors,
                                 .keys = nemotron::kKeys};

}  // namespace megatron::models
