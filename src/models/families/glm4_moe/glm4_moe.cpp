// GLM-4.5 and GLM-4.6 (GLM Team 2025): sigmoid scores with a correction bias, a shared expert,
// dense first layers.
#include "base/error.h"
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace glm4_moe {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
  "num_attention_heads": 96, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
  "attention_bias": false, "attention_dropout": 0.0, "moe_intermediate_size": 1408,
  "num_experts_per_tok": 8, "output_router_logits": false, "n_shared_experts": 1,
  "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
  "first_k_dense_replace": 1, "norm_topk_prob": true, "use_qk_norm": false})";

constexpr CommonForm kForm{.partial_rotary = true};
constexpr DecoderFamily::Alias kAliases[] = {{"num_local_experts", "n_routed_experts"}};

DecoderValue read(const Json& j) {
  DecoderValue value = read_common(j, kForm);
  value.router.states_router_logits = boolean(j, "output_router_logits");
  const bool bias = boolean(j, "attention_bias"), normalised_heads = boolean(j, "use_qk_norm");
  for (LayerValue& layer : value.layers) {
    layer.attention()->qkv_bias = bias;  // the output has no bias
    if (normalised_heads) layer.attention()->qk_norm = nn::QkNorm::head;
  }
  nn::MoeConfig experts{.experts = integer(j, "n_routed_experts"),
                        .choices = integer(j, "num_experts_per_tok"),
                        .router = read_sigmoid_router(j),
                        .correction_bias = true,
                        .expert = *value.layers[0].mlp()};
  experts.expert.ffn = integer(j, "moe_intermediate_size");
  experts.shared_ffn = experts.expert.ffn * integer(j, "n_shared_experts");
  const int64_t dense = count(j, "first_k_dense_replace");
  set_experts(value, experts, [&](int64_t layer) { return layer >= dense; });
  read_prediction(j, value);
  return value;
}

int64_t first_sparse_of(const DecoderValue& value) {
  int64_t first = 0;
  while (value.layers[static_cast<size_t>(first)].moe() == nullptr) ++first;
  return first;
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kForm);
  const nn::MoeConfig& moe = *value.first_moe();
  const nn::AttentionConfig& attention = *value.first_attention();
  MG_CHECK(moe.shared_ffn % moe.expert.ffn == 0,
           "a shared expert of width {}, which is not a multiple of an expert's {}", moe.shared_ffn,
           moe.expert.ffn);
  j.set("architectures", Json::Array{"Glm4MoeForCausalLM"});
  j.set("attention_bias", attention.qkv_bias);
  j.set("first_k_dense_replace", first_sparse_of(value));
  j.set("moe_intermediate_size", moe.expert.ffn);
  j.set("n_group", moe.router.groups);
  j.set("n_routed_experts", moe.experts);
  j.set("n_shared_experts", moe.shared_ffn / moe.expert.ffn);
  j.set("norm_topk_prob", moe.router.normalised);
  j.set("num_experts_per_tok", moe.choices);
  write_prediction(value, j);
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
                         {"mlp.shared.down", "mlp.shared_experts.down_proj"}},
                        true);
}

constexpr DecoderFamily::Key kKeys[] = {{"--num-experts", "n_routed_experts"}};

}  // namespace glm4_moe

const DecoderFamily kGlm4Moe = {.name = "glm4_moe",
                                .models = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
                                .read = glm4_moe::read,
                                .write = glm4_moe::write,
                                .tensors = glm4_moe::tensors,
                                .defaults = glm4_moe::kDefaults,
                                .aliases = glm4_moe::kAliases,
                                .keys = glm4_moe::kKeys,
                                .prediction_layers = 1};

}  // namespace megatron::models
