// gpt-oss (OpenAI 2025): experts with biases and a clamped SwiGLU, attention with learned sinks and windows in every other
// layer, YaRN positions.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace gpt_oss {
namespace {

constexpr CommonDefaults kDefaults{
    .norm_epsilon = 1e-5, .rope_theta = 150000, .kv_heads = 8, .head_size = 64};
constexpr double kAuxLoss = 0.9;

DecoderValue read(const Json& j) {
  refuse_unless(j, "hidden_act", "silu");
  refuse_unless(j, "swiglu_alpha", 1.702);
  DecoderValue value = read_common(j, kDefaults);
  read_aux_loss(j, kAuxLoss, value);
  const bool bias = boolean(j, "attention_bias", true);
  for (LayerValue& layer : value.layers) {
    layer.attention()->qkv_bias = layer.attention()->output_bias = bias;
    layer.attention()->sinks = nn::Sinks::learned;
  }
  read_windows(j, value, [](const Json&, int64_t layer) { return layer % 2 == 0; });
  const nn::MoeConfig experts{.experts = integer(j, "num_local_experts", 128),
                              .choices = integer(j, "num_experts_per_tok", 4),
                              .router_bias = true,
                              .expert = {.ffn = value.layers[0].mlp()->ffn,
                                         .activation = kernels::Activation::quick_gelu,
                                         .gated = true,
                                         .bias = true,
                                         .clamp = number(j, "swiglu_limit", 7),
                                         .up_offset = 1}};
  set_experts(value, experts, [](int64_t) { return true; });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kDefaults);
  const nn::MoeConfig& moe = *value.first_moe();
  const int64_t window = window_of(value);
  j.set("architectures", Json::Array{"GptOssForCausalLM"});
  j.set("attention_bias", value.first_attention()->qkv_bias);
  j.set("hidden_act", "silu");
  j.set("layer_types", layer_types(value));
  j.set("model_type", "gpt_oss");
  j.set("num_experts_per_tok", moe.choices);
  j.set("num_local_experts", moe.experts);
  j.set("sliding_window", window > 0 ? Json(window) : Json());
  j.set("swiglu_alpha", 1.702);
  j.set("swiglu_limit", moe.expert.clamp);
  write_aux_loss(value, kAuxLoss, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = llama_tensors(value, {{"attention_norm", "input_layernorm"},
                                            {"mlp_norm", "post_attention_layernorm"},
                                            {"attention.sinks", "self_attn.sinks"},
                                            {"mlp.router", "mlp.router"}});
  map.layer.push_back(
      {"mlp.experts.up.weight", "mlp.experts.gate_up_proj", Take::experts_interleaved});
  map.layer.push_back(
      {"mlp.experts.up.bias", "mlp.experts.gate_up_proj_bias", Take::experts_interleaved});
  map.layer.push_back(
      {"mlp.experts.down.weight", "mlp.experts.down_proj", Take::experts_stored_in_out});
  map.layer.push_back(
      {"mlp.experts.down.bias", "mlp.experts.down_proj_bias", Take::experts_stored_in_out});
  return map;
}

constexpr DecoderFamily::Key kKeys[] = {{"--activation-func-clamp-value", "swiglu_limit"},
                                        {"--moe-ffn-hidden-size", "intermediate_size"},
                                        {"--num-experts", "num_local_experts"}};

}  // namespace
}  // namespace gpt_oss

const DecoderFamily kGptOss = {.name = "gpt_oss",
                               .models = "gpt-oss-20b, gpt-oss-120b",
                               .read = gpt_oss::read,
                               .write = gpt_oss::write,
                               .tensors = gpt_oss::tensors,
                               .keys = gpt_oss::kKeys};

}  // namespace megatron::models
