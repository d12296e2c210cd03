// Qwen3 (Yang et al. 2025): Llama with RMSNorm of each head of queries and keys, heads of any size;
// windows from a layer on.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace qwen3 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 32768, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "use_sliding_window": false,
  "sliding_window": 4096, "max_window_layers": 28, "attention_dropout": 0.0,
  "attention_bias": false})";

constexpr CommonForm kForm{.attention_bias = true, .qk_norm = nn::QkNorm::head};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  read_late_windows(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  j.set("architectures", Json::Array{"Qwen3ForCausalLM"});
  write_late_windows(value, j);
  return j;
}

}  // namespace qwen3

const DecoderFamily kQwen3 = {.name = "qwen3",
                              .models = "Qwen3 (dense)",
                              .read = qwen3::read,
                              .write = qwen3::write,
                              .tensors = llama_tensors,
                              .defaults = qwen3::kDefaults,
                              .score_class = "Qwen3ForSequenceClassification"};

}  // namespace megatron::models
