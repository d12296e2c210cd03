// What the config.json of families with experts have in common.
#pragma once

#include <functional>
#include <string_view>

#include "models/families/config_json.h"

namespace megatron::models {

// Experts in place of the MLP in every layer for which `sparse` is true. Throws Error where it is true of none.
void set_experts(DecoderValue& value, const nn::MoeConfig& experts,
                 const std::function<bool(int64_t layer)>& sparse);

// Experts in layers (i + 1) % decoder_sparse_step == 0 that mlp_only_layers does not list.
bool is_sparse(const Json& config, int64_t layer);
// These two keys.
void write_sparse_layers(const DecoderValue& value, Json& config);

// Of norm_topk_prob: a softmax over all experts whose weights are divided by their sum is one over the chosen.
kernels::RouterForm read_softmax_router(const Json& config);
bool normalises(const nn::MoeConfig& moe);

// router_aux_loss_coef and output_router_logits, which transformers reads together. They do not train the model here:
// --moe-aux-loss-coeff does.
void read_aux_loss(const Json& config, DecoderValue& value);
void write_aux_loss(const DecoderValue& value, double otherwise, Json& config);

// write_common() of a model whose layers may all have experts: intermediate_size is that of the layers without, or, where
// there are none, of an expert.
Json write_common_of_experts(const DecoderValue& value, const CommonForm& form = {});

// llama_tensors() and those of the router and of each expert, whose number stands for '#'.
struct ExpertNames {
  std::string_view router = "mlp.gate.weight";
  std::string_view gate = "mlp.experts.#.gate_proj", up = "mlp.experts.#.up_proj",
                   down = "mlp.experts.#.down_proj";
};
FamilyTensors expert_tensors(const DecoderValue& value, const ExpertNames& names,
                             std::vector<TensorName> others = {});

}  // namespace megatron::models
