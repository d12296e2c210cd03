// Mistral (Jiang et al. 2023): Llama with a sliding window in every layer, or in none.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace mistral {
namespace {

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, {.kv_heads = 8});
  read_windows(j, value, [](const Json&, int64_t) { return true; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value);
  const int64_t window = window_of(value);
  j.set("architectures", Json::Array{"MistralForCausalLM"});
  j.set("model_type", "mistral");
  j.set("sliding_window", window > 0 ? Json(window) : Json());
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(
      value, {{"attention_norm", "input_layernorm"}, {"mlp_norm", "post_attention_layernorm"}});
}

}  // namespace
}  // namespace mistral

const DecoderFamily kMistral = {.name = "mistral",
                                .models = "Mistral 7B, Mistral NeMo, Mistral Small",
                                .read = mistral::read,
                                .write = mistral::write,
                                .tensors = mistral::tensors};

}  // namespace megatron::models
