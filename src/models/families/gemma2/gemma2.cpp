// Gemma 2 (Gemma Team 2024): four norms a layer with 1 + w, windows in every other layer, soft caps, embeddings
// times sqrt(hidden size).
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace gemma2 {
namespace {

constexpr CommonDefaults kDefaults{
    .tied = true, .activation = "gelu_pytorch_tanh", .activation_key = "hidden_activation"};

DecoderValue read(const Json& j) {
  refuse_unless(j, "use_bidirectional_attention", false);
  DecoderValue value = read_common(j, kDefaults);
  read_gemma(j, value);
  for (LayerValue& layer : value.layers)
    layer.attention()->soft_cap = number(j, "attn_logit_softcapping", 0);
  value.logits_soft_cap = number(j, "final_logit_softcapping", 0);
  read_windows(j, value, [](const Json&, int64_t layer) { return layer % 2 == 0; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kDefaults);
  const double cap = value.first_attention()->soft_cap;
  j.set("architectures", Json::Array{"Gemma2ForCausalLM"});
  j.set("attn_logit_softcapping", cap > 0 ? Json(cap) : Json());
  j.set("final_logit_softcapping",
        value.logits_soft_cap > 0 ? Json(value.logits_soft_cap) : Json());
  j.set("layer_types", layer_types(value));
  j.set("model_type", "gemma2");
  j.set("sliding_window", window_of(value) > 0 ? Json(window_of(value)) : Json());
  write_gemma(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return llama_tensors(value, {{"attention_norm", "input_layernorm"},
                               {"attention_post_norm", "post_attention_layernorm"},
                               {"mlp_norm", "pre_feedforward_layernorm"},
                               {"mlp_post_norm", "post_feedforward_layernorm"}});
}

}  // namespace
}  // namespace gemma2

const DecoderFamily kGemma2 = {.name = "gemma2",
                               .models = "Gemma 2",
                               .read = gemma2::read,
                               .write = gemma2::write,
                               .tensors = gemma2::tensors};

}  // namespace megatron::models
