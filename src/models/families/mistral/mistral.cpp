// Mistral (Jiang et al. 2023): Llama with a sliding window in every layer, or in none.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace mistral {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "sliding_window": 4096,
  "attention_dropout": 0.0})";

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j);
  read_window(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value);
  j.set("architectures", Json::Array{"MistralForCausalLM"});
  j.set("sliding_window", sliding_window(value));
  return j;
}

}  // namespace mistral

const DecoderFamily kMistral = {.name = "mistral",
                                .models = "Mistral 7B, Mistral NeMo, Mistral Small",
                                .read = mistral::read,
                                .write = mistral::write,
                                .tensors = llama_tensors,
                                .defaults = mistral::kDefaults,
                                .score_class = "MistralForSequenceClassification"};

}  // namespace megatron::models
