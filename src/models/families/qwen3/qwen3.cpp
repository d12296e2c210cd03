// Qwen3 (Yang et al. 2025): Llama with RMSNorm of each head of queries and keys, heads of any size;
// windows from a layer on.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace qwen3 {
namespace {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "use_sliding_window": false,
  "sliding_window": 4096, "max_window_layers": 28, "attention_dropout": 0.0,
  "attention_bias": false})";

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j);
  const bool bias = boolean(j, "attention_bias");
  for (LayerValue& layer : value.layers) {
    layer.attention()->qk_norm = nn::QkNorm::head;
    layer.attention()->qkv_bias = layer.attention()->output_bias = bias;
  }
  read_optional_windows(
      j, value, [first = count(j, "max_window_layers")](int64_t layer) { return layer >= first; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value);
  j.set("architectures", Json::Array{"Qwen3ForCausalLM"});
  j.set("attention_bias", value.first_attention()->qkv_bias);
  j.set("layer_types", layer_types(value));
  j.set("max_window_layers", first_window(value));
  j.set("model_type", "qwen3");
  j.set("sliding_window", sliding_window(value));
  j.set("use_sliding_window", window_of(value) > 0);
  return j;
}

}  // namespace
}  // namespace qwen3

const DecoderFamily kQwen3 = {.name = "qwen3",
                              .models = "Qwen3 (dense)",
                              .read = qwen3::read,
                              .write = qwen3::write,
                              .tensors = llama_tensors,
                              .defaults = qwen3::kDefaults};

}  // namespace megatron::models
