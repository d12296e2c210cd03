#include "golden/plan/megatron_arguments.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

std::optional<int64_t> optional(const Json& value) {
  if (value.is_null()) return {};
  return value.as_integer();
}

// A number f: layers 0, f, 2f ...
std::vector<bool> expert_layers(const Json& value, int64_t layers) {
  std::vector<bool> has(static_cast<size_t>(layers));
  for (size_t i = 0; i < has.size(); ++i)
    has[i] = value.is_array() ? value.as_array().at(i).as_integer() != 0
                              : static_cast<int64_t>(i) % value.as_integer() == 0;
  return has;
}

void read_experts(const Json& a, MegatronShape& s) {
  s.num_experts = optional(a["num_experts"]);
  if (s.num_experts) s.moe_layers = expert_layers(a["moe_layer_freq"], s.num_layers);
  s.moe_router_topk = a["moe_router_topk"].as_integer();
  s.moe_ffn_hidden_size = optional(a["moe_ffn_hidden_size"]);
  s.moe_latent_size = optional(a["moe_latent_size"]);
  s.moe_shared_expert_intermediate_size = optional(a["moe_shared_expert_intermediate_size"]);
}

}  // namespace

bool is_model_of_this_program(const Json& a) {
  const Json *predictions = a.find("mtp_num_layers"),
             *attention = a.find("experimental_attention_variant");
  return !a["multi_latent_attention"].as_bool() && a["hybrid_layer_pattern"].is_null() &&
         (attention == nullptr || attention->is_null()) &&
         (predictions == nullptr || predictions->is_null() || predictions->as_integer() == 0);
}

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
  read_experts(a, s);
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
