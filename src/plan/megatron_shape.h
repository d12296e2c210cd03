// A model described by Megatron-LM's arguments, for the formulas that Megatron-LM reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/facts.h"

namespace megatron::plan {

// Members have the names of the arguments; an unset member is Megatron-LM's None.
struct MegatronShape {
  int64_t num_layers = 0, hidden_size = 0, num_attention_heads = 0;
  int64_t ffn_hidden_size = 0, padded_vocab_size = 0;
  std::optional<int64_t> kv_channels;  // hidden / heads
  bool swiglu = false;
  bool group_query_attention = false;
  int64_t num_query_groups = 1;
  bool attention_output_gate = false;
  bool untie_embeddings_and_output_weights = false;
  bool add_bias_linear = true;
  bool rms_norm = false;

  // Experts.
  std::optional<int64_t> num_experts;
  std::vector<bool> moe_layers;  // true for those that have experts; empty: none has
  int64_t moe_router_topk = 2;
  std::optional<int64_t> moe_ffn_hidden_size, moe_latent_size, moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;

  int64_t head_size() const { return kv_channels.value_or(hidden_size / num_attention_heads); }
  int64_t key_groups() const {
    return group_query_attention ? num_query_groups : num_attention_heads;
  }
  int64_t mlp_matrices() const { return swiglu ? 3 : 2; }
  bool has_experts(int64_t layer) const {
    return !moe_layers.empty() && moe_layers[static_cast<size_t>(layer)];
  }
};

MegatronShape megatron_shape(const models::ModelFacts& model, int64_t padded_vocabulary);

}  // namespace megatron::plan
