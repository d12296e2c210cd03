// Qwen2, Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values alone; windows from a layer
// on; a language-model or a score head.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace qwen2 {
namespace {

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, {.kv_heads = 32});
  read_score_head(j, value);
  for (LayerValue& layer : value.layers) layer.attention()->qkv_bias = true;
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
  j.set("layer_types", layer_types(value));
  j.set("max_window_layers", first_window(value));
  j.set("model_type", "qwen2");
  j.set("sliding_window", window > 0 ? Json(window) : Json());
  j.set("use_sliding_window", window > 0);
  write_score_head(value, "Qwen2", j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(
      value, {{"attention_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}});
}

}  // namespace
}  // namespace qwen2

const DecoderFamily kQwen2 = {.name = "qwen2",
                              .models = "Qwen2, Qwen2.5",
                              .read = qwen2::read,
                              .write = qwen2::write,
                              .tensors = qwen2::tensors};

}  // namespace megatron::models
