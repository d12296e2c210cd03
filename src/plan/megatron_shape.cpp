#include "plan/megatron_shape.h"

namespace megatron::plan {

MegatronShape megatron_shape(const models::ModelFacts& model, int64_t padded_vocabulary) {
  MegatronShape s;
  const models::AttentionFacts attention =
      model.attention.value_or(models::AttentionFacts{.heads = 1, .key_heads = 1, .head_size = 1});
  const models::FeedForwardFacts feed_forward = model.feed_forward ? *model.feed_forward
                                                : model.experts    ? model.experts->each
                                                                   : models::FeedForwardFacts{1};
  s.num_layers = model.num_layers;
  s.hidden_size = model.hidden_size;
  s.num_attention_heads = attention.heads;
  s.ffn_hidden_size = feed_forward.width;
  s.padded_vocab_size = padded_vocabulary;
  s.kv_channels = attention.head_size;
  s.swiglu = feed_forward.gated && feed_forward.activation != kernels::Activation::quick_gelu;
  s.group_query_attention = attention.key_heads != attention.heads;
  s.num_query_groups = attention.key_heads;
  s.untie_embeddings_and_output_weights = !model.tied;
  s.add_bias_linear = feed_forward.bias;
  s.rms_norm = model.rms_norm;
  if (!model.experts) return s;
  const models::ExpertFacts& experts = *model.experts;
  s.num_experts = experts.count;
  s.moe_router_topk = experts.chosen;
  s.moe_ffn_hidden_size = experts.each.width;
  if (experts.latent > 0) s.moe_latent_size = experts.latent;
  if (experts.shared_width > 0) s.moe_shared_expert_intermediate_size = experts.shared_width;
  s.moe_shared_expert_gate = experts.shared_gate;
  s.moe_layers = experts.layers;
  return s;
}

}  // namespace megatron::plan
