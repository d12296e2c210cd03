// Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024): Qwen2 with experts of which one is shared, behind a gate, and weights that
// may not sum to 1.
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace qwen2_moe {
namespace {

constexpr CommonDefaults kDefaults{.kv_heads = 16};
constexpr double kAuxLoss = 0.001;

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kDefaults);
  read_aux_loss(j, kAuxLoss, value);
  const bool bias = boolean(j, "qkv_bias", true);
  for (LayerValue& layer : value.layers) layer.attention()->qkv_bias = bias;
  if (boolean(j, "use_sliding_window", false)) {
    read_windows(j, value, [](const Json& config, int64_t layer) {
      return layer >= integer(config, "max_window_layers", 28);
    });
  }
  nn::MoeConfig experts{.experts = integer(j, "num_experts", 60),
                        .choices = integer(j, "num_experts_per_tok", 4),
                        .router = read_softmax_router(j),
                        .expert = *value.layers[0].mlp(),
                        .shared_ffn = integer(j, "shared_expert_intermediate_size", 5632),
                        .shared_gate = true};
  experts.expert.ffn = integer(j, "moe_intermediate_size", 1408);
  set_experts(value, experts, [&](int64_t layer) { return is_sparse(j, layer); });
  return value;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kDefaults);
  const nn::MoeConfig& moe = *value.first_moe();
  const int64_t window = window_of(value);
  j.set("architectures", Json::Array{"Qwen2MoeForCausalLM"});
  j.set("layer_types", layer_types(value));
  j.set("max_window_layers", first_window(value));
  j.set("model_type", "qwen2_moe");
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("norm_topk_prob", normalises(moe));
  j.set("num_experts", moe.experts);
  j.set("num_experts_per_tok", moe.choices);
  j.set("qkv_bias", value.first_attention()->qkv_bias);
  j.set("shared_expert_intermediate_size", moe.shared_ffn);
  j.set("sliding_window", window);
  j.set("use_sliding_window", window > 0);
  write_sparse_layers(value, j);
  write_aux_loss(value, kAuxLoss, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return expert_tensors(value, {},
                        {{"mlp.shared.up", "mlp.shared_expert.gate_proj", Take::gate},
                         {"mlp.shared.up", "mlp.shared_expert.up_proj", Take::up},
                         {"mlp.shared.down", "mlp.shared_expert.down_proj"},
                         {"mlp.shared_gate", "mlp.shared_expert_gate"}});
}

}  // namespace
}  // namespace qwen2_moe

const DecoderFamily kQwen2Moe = {.name = "qwen2_moe",
                                 .models = "Qwen1.5-MoE, Qwen2-57B-A14B",
                                 .read = qwen2_moe::read,
                                 .write = qwen2_moe::write,
                                 .tensors = qwen2_moe::tensors};

}  // namespace megatron::models
