// Common parts of the config.json of families with experts.
#pragma once

#include <functional>
#include <string_view>

#include "models/families/config_json.h"

namespace megatron::models {

// Replaces the MLP by experts in every layer for which `sparse` is true. Throws Error if there is
// none.
void set_experts(DecoderValue& value, const nn::MoeConfig& experts,
                 const std::function<bool(int64_t layer)>& sparse);

// True for layers with experts: (i + 1) % decoder_sparse_step == 0, and not listed in
// mlp_only_layers.
bool is_sparse(const Json& config, int64_t layer);
// Writes decoder_sparse_step and mlp_only_layers.
void write_sparse_layers(const DecoderValue& value, Json& config);

// Reads norm_topk_prob: a softmax over all experts whose chosen weights are normalized equals a
// softmax over the chosen experts.
kernels::RouterForm read_softmax_router(const Json& config);
bool normalises(const nn::MoeConfig& moe);
// The router of DeepSeek-V3 and its like: sigmoids and groups of experts, with the keys n_group,
// topk_group, norm_topk_prob and routed_scaling_factor.
kernels::RouterForm read_sigmoid_router(const Json& config);

// router_aux_loss_coef and output_router_logits, which transformers reads together. They have no
// effect on training here; --moe-aux-loss-coeff sets the coefficient.
void read_aux_loss(const Json& config, DecoderValue& value);
// otherwise: coefficient of config.json files that state none.
void write_aux_loss(const DecoderValue& value, Json& config, double otherwise = 0.001);

// Like write_common(), for a model whose layers may all have experts: intermediate_size is that of
// the layers without experts or, if there are none, of an expert.
Json write_common_of_experts(const DecoderValue& value, const CommonForm& form = {});

// llama_tensors() plus the tensors of the router and of each expert, whose number replaces '#'.
struct ExpertNames {
  std::string_view router = "mlp.gate.weight";
  std::string_view gate = "mlp.experts.#.gate_proj", up = "mlp.experts.#.up_proj",
                   down = "mlp.experts.#.down_proj";
};
// predicts: the family has multi-token prediction.
FamilyTensors expert_tensors(const DecoderValue& value, const ExpertNames& names,
                             std::vector<TensorName> others = {}, bool predicts = false);

// Reads and writes num_nextn_predict_layers; the depths of prediction are like the last layer.
void read_prediction(const Json& config, DecoderValue& value);
void write_prediction(const DecoderValue& value, Json& config);

}  // namespace megatron::models
