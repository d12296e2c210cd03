// Gemma 3, its text model (Gemma Team 2025): Gemma 2 with norms of queries and keys in place of soft caps, and
// rotary positions of their own for layers with a window.
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace gemma3_text {
namespace {

constexpr CommonDefaults kDefaults{.rope_theta = 1e6,
                                   .tied = true,
                                   .activation = "gelu_pytorch_tanh",
                                   .activation_key = "hidden_activation"};

// {"sliding_attention": {...}, "full_attention": {...}}, or rope_theta, rope_local_base_freq and rope_scaling.
void read_rotaries(const Json& j, DecoderValue& value) {
  const Json* both = present(j, "rope_parameters");
  const Json none(Json::Object{});
  const bool nested = both != nullptr && both->is_object() && both->contains("full_attention");
  const Json* local = nested ? present(*both, "sliding_attention") : nullptr;
  value.rotary.clear();
  value.rotary["global"] = nested ? read_rope_parameters(j, (*both)["full_attention"], kDefaults,
                                                         value.max_position_embeddings)
                                  : read_rotary(j, kDefaults, value.max_position_embeddings);
  value.rotary["local"] = {.base = number(local == nullptr ? none : *local, "rope_theta",
                                          number(j, "rope_local_base_freq", 10000))};
  if (local != nullptr) refuse_unless(*local, "rope_type", "default");
  for (LayerValue& layer : value.layers)
    layer.attention()->rotary = layer.attention()->window > 0 ? "local" : "global";
}

DecoderValue read(const Json& j) {
  refuse_unless(j, "use_bidirectional_attention", false);
  Json plain = j;
  plain.set("rope_parameters", Json());
  plain.set("rope_scaling", Json());
  DecoderValue value = read_common(plain, kDefaults);
  read_gemma(j, value);
  for (LayerValue& layer : value.layers) {
    layer.attention()->qk_norm = nn::QkNorm::head;
    layer.attention()->soft_cap = number(j, "attn_logit_softcapping", 0);
  }
  value.logits_soft_cap = number(j, "final_logit_softcapping", 0);
  read_windows(j, value, [](const Json& config, int64_t layer) {
    const int64_t pattern =
        integer(config, "sliding_window_pattern", integer(config, "_sliding_window_pattern", 6));
    return (layer + 1) % pattern != 0;
  });
  read_rotaries(j, value);
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common(value, kDefaults);
  const auto table = [&](const std::string& name) {
    const auto found = value.rotary.find(name);
    return write_rope_parameters(found == value.rotary.end() ? nn::RotaryConfig{} : found->second);
  };
  const double cap = value.first_attention()->soft_cap;
  j.set("architectures", Json::Array{"Gemma3ForCausalLM"});
  j.set("attn_logit_softcapping", cap > 0 ? Json(cap) : Json());
  j.set("final_logit_softcapping",
        value.logits_soft_cap > 0 ? Json(value.logits_soft_cap) : Json());
  j.set("layer_types", layer_types(value));
  j.set("model_type", "gemma3_text");
  j.set("rope_parameters",
        Json::Object{{"full_attention", table("global")}, {"sliding_attention", table("local")}});
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
}  // namespace gemma3_text

const DecoderFamily kGemma3Text = {.name = "gemma3_text",
                                   .models = "Gemma 3 (text)",
                                   .read = gemma3_text::read,
                                   .write = gemma3_text::write,
                                   .tensors = gemma3_text::tensors};

}  // namespace megatron::models
