// Qwen3 (Yang et al. 2025): Llama with RMSNorm of each head of queries and keys, heads of any size; windows from
// a layer on.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace qwen3 {
namespace {

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, {.kv_heads = 32, .head_size = 128});
  const bool bias = boolean(j, "attention_bias", false);
  for (LayerValue& layer : value.layers) {
    layer.attention()->qk_norm = nn::QkNorm::head;
    layer.attention()->qkv_bias = layer.attention()->output_bias = bias;
  }
  if (boolean(j, "use_sliding_window", false)) {
    read_windows(j, value, [](const Json& config, int64_t layer) {
      return layer >= integer(config, "max_window_layers", 28);
    });
  }
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value);
  const int64_t window = window_of(value);
  j.set("architectures", Json::Array{"Qwen3ForCausalLM"});
  j.set("attention_bias", value.first_attention()->qkv_bias);
  j.set("layer_types", layer_types(value));
  j.set("max_window_layers", first_window(value));
  j.set("model_type", "qwen3");
  j.set("sliding_window", window > 0 ? Json(window) : Json());
  j.set("use_sliding_window", window > 0);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(
      value, {{"attention_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}});
}

}  // namespace
}  // namespace qwen3

const DecoderFamily kQwen3 = {.name = "qwen3",
                              .models = "Qwen3 (dense)",
                              .read = qwen3::read,
                              .write = qwen3::write,
                              .tensors = qwen3::tensors};

}  // namespace megatron::models
