// Qwen2, Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values alone; windows
// from a layer on; a language-model or a score head.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace qwen2 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
  "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "use_sliding_window": false,
  "sliding_window": 4096, "max_window_layers": 28, "attention_dropout": 0.0})";

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j);
  for (LayerValue& layer : value.layers) layer.attention()->qkv_bias = true;
  read_late_windows(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value);
  write_late_windows(value, j);
  j.set("architectures", Json::Array{"Qwen2ForCausalLM"});
  return j;
}

}  // namespace qwen2

const DecoderFamily kQwen2 = {.name = "qwen2",
                              .models = "Qwen2, Qwen2.5",
                              .read = qwen2::read,
                              .write = qwen2::write,
                              .tensors = llama_tensors,
                              .defaults = qwen2::kDefaults,
                              .score_class = "Qwen2ForSequenceClassification"};

}  // namespace megatron::models
