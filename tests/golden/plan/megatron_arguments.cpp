#include "golden/plan/megatron_arguments.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

std::optional<int64_t> optional(const Json& value) {
  if (value.is_null()) return {};
  return value.as_integer();
}

LayerFrequency frequency(const Json& value) {
  LayerFrequency f;
  if (value.is_array()) {
    for (const Json& layer : value.as_array()) f.layers.push_back(layer.as_integer());
  } else {
    f.every = value.as_integer();
  }
  return f;
}

void read_experts(const Json& a, MegatronShape& s) {
  s.num_experts = optional(a["num_experts"]);
  s.moe_layer_freq = frequency(a["moe_layer_freq"]);
  s.moe_router_topk = a["moe_router_topk"].as_integer();
  s.moe_ffn_hidden_size = optional(a["moe_ffn_hidden_size"]);
  s.moe_latent_size = optional(a["moe_latent_size"]);
  s.moe_shared_expert_intermediate_size = optional(a["moe_shared_expert_intermediate_size"]);
}

void read_attention(const Json& a, MegatronShape& s) {
  s.multi_latent_attention = a["multi_latent_attention"].as_bool();
  s.q_lora_rank = optional(a["q_lora_rank"]);
  s.kv_lora_rank = optional(a["kv_lora_rank"]);
  s.qk_head_dim = optional(a["qk_head_dim"]);
  s.qk_pos_emb_head_dim = optional(a["qk_pos_emb_head_dim"]);
  s.v_head_dim = optional(a["v_head_dim"]);
  const Json& variant = a["experimental_attention_variant"];
  if (!variant.is_null()) {
    EXPECT_EQ(variant.as_string(), "gated_delta_net");
    s.linear_attention = LinearAttention::gated_delta_net;
  }
  if (!a["linear_attention_freq"].is_null())
    s.linear_attention_freq = frequency(a["linear_attention_freq"]);
  s.linear_key_head_dim = optional(a["linear_key_head_dim"]);
  s.linear_value_head_dim = optional(a["linear_value_head_dim"]);
  s.linear_num_key_heads = optional(a["linear_num_key_heads"]);
  s.linear_num_value_heads = optional(a["linear_num_value_heads"]);
  s.linear_conv_kernel_dim = optional(a["linear_conv_kernel_dim"]);
}

}  // namespace

MegatronShape shape_from(const Json& a) {
  MegatronShape s;
  s.num_layers = a["num_layers"].as_integer();
  s.hidden_size = a["hidden_size"].as_integer();
  s.num_attention_heads = a["num_attention_heads"].as_integer();
  s.ffn_hidden_size = a["ffn_hidden_size"].as_integer();
  s.padded_vocab_size = a["padded_vocab_size"].as_integer();
  s.kv_channels = optional(a["kv_channels"]);
  s.swiglu = a["swiglu"].as_bool();
  s.group_query_attention = a["group_query_attention"].as_bool();
  s.num_query_groups = a["num_query_groups"].as_integer();
  s.attention_output_gate = a["attention_output_gate"].as_bool();
  s.mtp_num_layers = optional(a["mtp_num_layers"]);
  read_experts(a, s);
  read_attention(a, s);
  if (!a["hybrid_layer_pattern"].is_null())
    s.hybrid_layer_pattern = a["hybrid_layer_pattern"].as_string();
  s.mamba_state_dim = a["mamba_state_dim"].as_integer();
  s.mamba_head_dim = a["mamba_head_dim"].as_integer();
  s.mamba_num_groups = a["mamba_num_groups"].as_integer();
  s.mamba_num_heads = optional(a["mamba_num_heads"]);
  if (!a.contains("normalization")) return s;
  s.untie_embeddings_and_output_weights = a["untie_embeddings_and_output_weights"].as_bool();
  s.add_bias_linear = a["add_bias_linear"].as_bool();
  s.rms_norm = a["normalization"].as_string() == "RMSNorm";
  s.moe_shared_expert_gate = a["moe_shared_expert_gate"].as_bool();
  return s;
}

MegatronLayout layout_from(const Json& a, const Json& micro_batches) {
  MegatronLayout l;
  l.seq_length = a["seq_length"].as_integer();
  l.micro_batch_size = a["micro_batch_size"].as_integer();
  l.num_microbatches = optional(micro_batches);
  l.tensor_model_parallel_size = a["tensor_model_parallel_size"].as_integer();
  l.pipeline_model_parallel_size = a["pipeline_model_parallel_size"].as_integer();
  l.data_parallel_size = a["data_parallel_size"].as_integer();
  l.world_size = a["world_size"].as_integer();
  l.virtual_pipeline_model_parallel_size = optional(a["virtual_pipeline_model_parallel_size"]);
  l.expert_tensor_parallel_size = a["expert_tensor_parallel_size"].as_integer();
  l.expert_model_parallel_size = a["expert_model_parallel_size"].as_integer();
  l.use_distributed_optimizer = a["use_distributed_optimizer"].as_bool();
  l.sequence_parallel = a["sequence_parallel"].as_bool();
  const Json& recompute = a["recompute_granularity"];
  l.selective_recompute = !recompute.is_null() && recompute.as_string() == "selective";
  return l;
}

}  // namespace megatron::plan
