// OLMo 2 (OLMo Team 2024): norms after attention and MLP only, queries and keys normalised over all heads.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace olmo2 {
namespace {

constexpr CommonDefaults kDefaults{.norm_epsilon = 1e-5, .rope_theta = 500000};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kDefaults);
  const bool bias = boolean(j, "attention_bias", false);
  for (LayerValue& layer : value.layers) {
    layer.norm_before = false;
    layer.norm_after = true;
    layer.attention()->qk_norm = nn::QkNorm::full_width;
    layer.attention()->qkv_bias = layer.attention()->output_bias = bias;
  }
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kDefaults);
  j.set("architectures", Json::Array{"Olmo2ForCausalLM"});
  j.set("attention_bias", value.first_attention()->qkv_bias);
  j.set("model_type", "olmo2");
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(value, {{"attention_post_norm", "post_attention_layernorm"},
                               {"mlp_post_norm", "post_feedforward_layernorm"}});
}

}  // namespace
}  // namespace olmo2

const DecoderFamily kOlmo2 = {.name = "olmo2",
                              .models = "OLMo 2",
                              .read = olmo2::read,
                              .write = olmo2::write,
                              .tensors = olmo2::tensors};

}  // namespace megatron::models
