// Llama 1 to 3.3 (Touvron et al. 2023; Grattafiori et al. 2024): rotary positions with every
// scaling, RMSNorm, gated SiLU, key heads that several query heads share; a language-model or a
// score head.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace llama {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
  "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false})";

constexpr CommonForm kForm{.attention_bias = true, .mlp_bias = true};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kForm);
  j.set("architectures", Json::Array{"LlamaForCausalLM"});
  return j;
}

}  // namespace llama

const DecoderFamily kLlama = {.name = "llama",
                              .models = "Llama 1 to 3.3",
                              .read = llama::read,
                              .write = llama::write,
                              .tensors = llama_tensors,
                              .defaults = llama::kDefaults,
                              .score_class = "LlamaForSequenceClassification"};

}  // namespace megatron::models
