#include "plan/megatron_shape.h"

#include "base/error.h"

namespace megatron::plan {
namespace {

int64_t needed(const std::optional<int64_t>& value, const char* flag, const char* reason) {
  MG_CHECK(value.has_value(), "--{} is not given, but {} needs it", flag, reason);
  return *value;
}

void check_list(const std::vector<int64_t>& layers, int64_t count, const char* flag) {
  MG_CHECK(layers.empty() || static_cast<int64_t>(layers.size()) == count,
           "--{} describes {} layers, but the model has {}", flag, layers.size(), count);
}

}  // namespace

std::vector<bool> MegatronShape::expert_layers() const {
  std::vector<bool> experts(static_cast<size_t>(num_layers));
  for (size_t i = 0; num_experts && i < experts.size(); ++i) {
    const std::vector<int64_t>& listed = moe_layer_freq.layers;
    experts[i] =
        listed.empty() ? static_cast<int64_t>(i) % moe_layer_freq.every == 0 : listed[i] != 0;
  }
  return experts;
}

std::vector<bool> MegatronShape::linear_layers() const {
  std::vector<bool> linear(static_cast<size_t>(num_layers));
  for (size_t i = 0; linear_attention != LinearAttention::none && i < linear.size(); ++i) {
    const std::vector<int64_t>& listed = linear_attention_freq->layers;
    linear[i] = listed.empty() ? (static_cast<int64_t>(i) + 1) % linear_attention_freq->every != 0
                               : listed[i] != 0;
  }
  return linear;
}

int64_t MegatronShape::latent_attention_weights(int64_t norm) const {
  const char* reason = "multi-latent attention";
  const int64_t h = hidden_size, n = num_attention_heads,
                qk = needed(qk_head_dim, "qk-head-dim", reason),
                rope = needed(qk_pos_emb_head_dim, "qk-pos-emb-head-dim", reason),
                v = needed(v_head_dim, "v-head-dim", reason),
                rank = needed(kv_lora_rank, "kv-lora-rank", reason);
  const int64_t queries =
      q_lora_rank ? *q_lora_rank * (h + n * (qk + rope) + norm) : h * n * (qk + rope);
  return queries + rank * (h + n * (qk + v) + norm) + h * rope + n * v * h;
}

void MegatronShape::check() const {
  MG_CHECK(num_layers > 0 && hidden_size > 0 && num_attention_heads > 0,
           "--num-layers {}, --hidden-size {} and --num-attention-heads {} must be positive",
           num_layers, hidden_size, num_attention_heads);
  MG_CHECK(moe_layer_freq.every > 0, "--moe-layer-freq is {}; it must be positive",
           moe_layer_freq.every);
  check_list(moe_layer_freq.layers, num_layers, "moe-layer-freq");
  if (linear_attention == LinearAttention::none) return;
  MG_CHECK(linear_attention_freq.has_value(),
           "--linear-attention-freq is not given, but linear attention needs it");
  MG_CHECK(linear_attention_freq->every > 0, "--linear-attention-freq is {}; it must be positive",
           linear_attention_freq->every);
  check_list(linear_attention_freq->layers, num_layers, "linear-attention-freq");
}

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
  if (const auto& latent = attention.latent) {
    s.multi_latent_attention = true;
    if (latent->query_rank > 0) s.q_lora_rank = latent->query_rank;
    s.kv_lora_rank = latent->rank;
    s.qk_head_dim = attention.head_size - latent->rotated;
    s.qk_pos_emb_head_dim = latent->rotated;
    s.v_head_dim = latent->value_size;
  }
  s.untie_embeddings_and_output_weights = !model.tied;
  s.add_bias_linear = feed_forward.bias;
  s.rms_norm = model.rms_norm;
  if (model.prediction.depths > 0) s.mtp_num_layers = model.prediction.depths;
  if (const auto& space = model.state_space) {
    s.hybrid_layer_pattern = model.hybrid_pattern;
    s.mamba_state_dim = space->states;
    s.mamba_head_dim = space->head_size;
    s.mamba_num_groups = space->groups;
    s.mamba_num_heads = space->heads;
  }
  if (!model.experts) return s;
  const models::ExpertFacts& experts = *model.experts;
  s.num_experts = experts.count;
  s.moe_router_topk = experts.chosen;
  s.moe_ffn_hidden_size = experts.each.width;
  if (experts.latent > 0) s.moe_latent_size = experts.latent;
  if (experts.shared_width > 0) s.moe_shared_expert_intermediate_size = experts.shared_width;
  s.moe_shared_expert_gate = experts.shared_gate;
  s.moe_layer_freq.layers.assign(experts.layers.begin(), experts.layers.end());
  return s;
}

}  // namespace megatron::plan
