// GLM-4.5 and GLM-4.6 (GLM Team 2025): sigmoid scores with a correction bias, a shared expert, dense first layers.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace glm4_moe {
namespace {

constexpr CommonDefaults kDefaults{.norm_epsilon = 1e-5, .rotary_fraction = 0.5, .kv_heads = 8};

// Of first_k_dense_replace, which may be 0.
int64_t first_sparse(const Json& j) {
  const Json* dense = present(j, "first_k_dense_replace");
  if (dense == nullptr) return 1;
  MG_CHECK(dense->is_integer() && dense->as_integer() >= 0,
           "config.json has first_k_dense_replace = {}; a number of layers is wanted",
           dense->dump());
  return dense->as_integer();
}

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kDefaults);
  value.router.states_router_logits = boolean(j, "output_router_logits", false);
  const bool bias = boolean(j, "attention_bias", false),
             normalised_heads = boolean(j, "use_qk_norm", false);
  for (LayerValue& layer : value.layers) {
    layer.attention()->qkv_bias = bias;  // of the output there is none
    if (normalised_heads) layer.attention()->qk_norm = nn::QkNorm::head;
  }
  nn::MoeConfig experts{.experts = integer(j, "n_routed_experts", 128),
                        .choices = integer(j, "num_experts_per_tok", 8),
                        .router = {.score = kernels::RouterScore::sigmoid,
                                   .normalised = boolean(j, "norm_topk_prob", true),
                                   .scale = number(j, "routed_scaling_factor", 1),
                                   .groups = integer(j, "n_group", 1),
                                   .chosen_groups = integer(j, "topk_group", 1)},
                        .correction_bias = true,
                        .expert = *value.layers[0].mlp()};
  experts.router.group_best = experts.router.groups > 1 ? 2 : 1;
  experts.expert.ffn = integer(j, "moe_intermediate_size", 1408);
  experts.shared_ffn = experts.expert.ffn * integer(j, "n_shared_experts", 1);
  const int64_t dense = first_sparse(j);
  set_experts(value, experts, [&](int64_t layer) { return layer >= dense; });
  return value;
}

int64_t first_sparse_of(const DecoderValue& value) {
  int64_t first = 0;
  while (value.layers[static_cast<size_t>(first)].moe() == nullptr) ++first;
  return first;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kDefaults);
  const nn::MoeConfig& moe = *value.first_moe();
  const nn::AttentionConfig& attention = *value.first_attention();
  MG_CHECK(moe.shared_ffn % moe.expert.ffn == 0,
           "a shared expert of width {}, which is not a multiple of an expert's {}", moe.shared_ffn,
           moe.expert.ffn);
  j.set("architectures", Json::Array{"Glm4MoeForCausalLM"});
  j.set("attention_bias", attention.qkv_bias);
  j.set("first_k_dense_replace", first_sparse_of(value));
  j.set("model_type", "glm4_moe");
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("n_group", moe.router.groups);
  j.set("n_routed_experts", moe.experts);
  j.set("n_shared_experts", moe.shared_ffn / moe.expert.ffn);
  j.set("norm_topk_prob", moe.router.normalised);
  j.set("num_experts_per_tok", moe.choices);
  j.set("num_nextn_predict_layers", 0);
  j.set("output_router_logits", value.router.states_router_logits);
  j.set("routed_scaling_factor", moe.router.scale);
  j.set("topk_group", moe.router.chosen_groups);
  j.set("use_qk_norm", attention.qk_norm == nn::QkNorm::head);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  return expert_tensors(value, {},
                        {{"mlp.router.correction", "mlp.gate.e_score_correction_bias"},
                         {"mlp.shared.up", "mlp.shared_experts.gate_proj", Take::gate},
                         {"mlp.shared.up", "mlp.shared_experts.up_proj", Take::up},
                         {"mlp.shared.down", "mlp.shared_experts.down_proj"}});
}

constexpr DecoderFamily::Key kKeys[] = {{"--num-experts", "n_routed_experts"}};

}  // namespace
}  // namespace glm4_moe

const DecoderFamily kGlm4Moe = {.name = "glm4_moe",
                                .models = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
                                .read = glm4_moe::read,
                                .write = glm4_moe::write,
                                .tensors = glm4_moe::tensors,
                                .keys = glm4_moe::kKeys,
                                .prediction_layers = 1};

}  // namespace megatron::models
