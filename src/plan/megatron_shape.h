// A model described by Megatron-LM's arguments, for the formulas that Megatron-LM reports. It can
// express more than the models of this program, so that the figures of any configuration can be
// compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/facts.h"

namespace megatron::plan {

// Selects the layers of a kind: a number, whose meaning depends on the argument, or 0 or 1 for each
// layer.
struct LayerFrequency {
  int64_t every = 1;
  std::vector<int64_t> layers;  // if not empty, used instead of `every`
};

enum class LinearAttention { none, gated_delta_net, gated_delta_net2 };

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
  std::optional<int64_t> mtp_num_layers;

  // Multi-latent attention.
  bool multi_latent_attention = false;
  std::optional<int64_t> q_lora_rank, kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim, v_head_dim;

  // Experts. moe_layer_freq `every` f: layers 0, f, 2f ...
  std::optional<int64_t> num_experts;
  LayerFrequency moe_layer_freq;
  int64_t moe_router_topk = 2;
  std::optional<int64_t> moe_ffn_hidden_size, moe_latent_size, moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;

  // Linear attention. linear_attention_freq `every` f: all layers but f-1, 2f-1 ...
  LinearAttention linear_attention = LinearAttention::none;
  std::optional<LayerFrequency> linear_attention_freq;
  std::optional<int64_t> linear_key_head_dim, linear_value_head_dim;    // 128
  std::optional<int64_t> linear_num_key_heads, linear_num_value_heads;  // 16, 32
  std::optional<int64_t> linear_conv_kernel_dim;                        // 4

  // One letter per layer, instead of num_layers (empty: none): * attention, + multi-latent
  // attention, - MLP, M Mamba-2, E experts, G gated delta net; each / is followed by the layers of
  // one multi-token prediction.
  std::string hybrid_layer_pattern;
  int64_t mamba_state_dim = 128, mamba_head_dim = 64, mamba_num_groups = 8;
  std::optional<int64_t> mamba_num_heads;  // 2 hidden / head

  int64_t head_size() const { return kv_channels.value_or(hidden_size / num_attention_heads); }
  int64_t key_groups() const {
    return group_query_attention ? num_query_groups : num_attention_heads;
  }
  int64_t mlp_matrices() const { return swiglu ? 3 : 2; }
  int64_t prediction_layers() const { return mtp_num_layers.value_or(0); }

  // One element per layer: true if it has experts, or if its attention is linear.
  std::vector<bool> expert_layers() const;
  std::vector<bool> linear_layers() const;
  // Weights of multi-latent attention; norm: weights per element of the norms of the two latents.
  int64_t latent_attention_weights(int64_t norm) const;
  // Throws Error naming an unset member that a formula requires.
  void check() const;
};

MegatronShape megatron_shape(const models::ModelFacts& model, int64_t padded_vocabulary);

}  // namespace megatron::plan
