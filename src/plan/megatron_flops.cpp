#include "plan/megatron_flops.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::plan {
namespace {

using Wide = Tokens::Wide;

Wide wide_total(const FlopTerms& terms, const Tokens& tokens) {
  return static_cast<Wide>(terms.token) * static_cast<Wide>(tokens.count) +
         static_cast<Wide>(terms.pair) * tokens.squares;
}

FlopTerms operator+(const FlopTerms& a, const FlopTerms& b) {
  return {a.token + b.token, a.pair + b.pair};
}
FlopTerms operator*(int64_t times, const FlopTerms& a) { return {times * a.token, times * a.pair}; }

// Terms of a layer's forward pass: 2 per weight and token.
FlopTerms attention(const MegatronShape& s) {
  const int64_t h = s.hidden_size, q = s.num_attention_heads * s.head_size(),
                k = s.key_groups() * s.head_size();
  const int64_t gate = s.attention_output_gate ? q : 0;
  return {2 * (h * (q + 2 * k + gate) + q * h), 2 * q};
}

FlopTerms latent_attention(const MegatronShape& s) {
  const int64_t weights = s.latent_attention_weights(1);
  return {2 * weights,
          s.num_attention_heads * (*s.qk_head_dim + *s.qk_pos_emb_head_dim + *s.v_head_dim)};
}

FlopTerms full_or_latent(const MegatronShape& s) {
  return s.multi_latent_attention ? latent_attention(s) : attention(s);
}

FlopTerms gated_delta_net(const MegatronShape& s) {
  const int64_t kv_heads = s.linear_num_key_heads.value_or(16),
                key = s.linear_key_head_dim.value_or(128),
                value_heads = s.linear_num_value_heads.value_or(32),
                value = s.linear_value_head_dim.value_or(128);
  const int64_t q = kv_heads * key, v = value_heads * value;
  const bool second = s.linear_attention == LinearAttention::gated_delta_net2;
  const int64_t in = second ? 4 * q + 3 * v : 2 * q + 2 * v + 2 * value_heads;
  const int64_t state = value_heads * value * value * 4;
  return {2 * (s.hidden_size * in + s.linear_conv_kernel_dim.value_or(4) * (2 * q + v) + state +
               s.hidden_size * v),
          0};
}

FlopTerms mlp(const MegatronShape& s) {
  return {2 * s.hidden_size * s.ffn_hidden_size * s.mlp_matrices(), 0};
}

FlopTerms experts(const MegatronShape& s) {
  const int64_t h = s.hidden_size, k = s.mlp_matrices(),
                routed = s.moe_ffn_hidden_size.value_or(s.ffn_hidden_size) * s.moe_router_topk * k;
  const int64_t each =
      s.moe_latent_size ? routed * *s.moe_latent_size + 2 * *s.moe_latent_size * h : routed * h;
  return {2 * (each + h * s.moe_shared_expert_intermediate_size.value_or(0) * k), 0};
}

FlopTerms mamba(const MegatronShape& s) {
  const int64_t h = s.hidden_size, width = 2 * h, state = s.mamba_state_dim,
                heads = s.mamba_num_heads.value_or(width / s.mamba_head_dim);
  return {2 * h * (2 * width + 2 * s.mamba_num_groups * state + heads) + 7 * width * state +
              2 * width * h,
          0};
}

FlopTerms output(const MegatronShape& s) {
  return {2 * s.hidden_size * s.padded_vocab_size * (s.prediction_layers() + 1), 0};
}

FlopTerms hybrid_layer(const MegatronShape& s, char letter) {
  switch (letter) {
    case '*': return attention(s);
    case '+': return latent_attention(s);
    case '-': return mlp(s);
    case 'M': return mamba(s);
    case 'E': return experts(s);
    case 'G': return gated_delta_net(s);
    default:
      fail(
          "--hybrid-layer-pattern contains '{}', which has no FLOP formula; supported are * + - M "
          "E G",
          letter);
  }
}

FlopTerms hybrid_forward(const MegatronShape& s) {
  FlopTerms sum = output(s);
  for (const char letter : s.hybrid_layer_pattern)
    if (letter != '/' && letter != '|') sum = sum + hybrid_layer(s, letter);
  return sum;
}

FlopTerms layered_forward(const MegatronShape& s) {
  const std::vector<bool> expert = s.expert_layers(), linear = s.linear_layers();
  const auto layer = [&](size_t i) {
    return (expert[i] ? experts(s) : mlp(s)) + (linear[i] ? gated_delta_net(s) : full_or_latent(s));
  };
  const int64_t h = s.hidden_size;
  FlopTerms sum = output(s);
  for (size_t i = 0; i < expert.size(); ++i) sum = sum + layer(i);
  const FlopTerms joined = {2 * (3 * h + 2 * h * h), 0};
  return sum + s.prediction_layers() * (layer(expert.size() - 1) + joined);
}

}  // namespace

double FlopTerms::total(const Tokens& tokens) const {
  return static_cast<double>(wide_total(*this, tokens));
}

FlopTerms megatron_flops(const MegatronShape& shape, Attention keys) {
  shape.check();
  const FlopTerms forward =
      shape.hybrid_layer_pattern.empty() ? layered_forward(shape) : hybrid_forward(shape);
  const FlopTerms step = 3 * forward;
  return {step.token, keys == Attention::full ? 2 * step.pair : step.pair};
}

}  // namespace megatron::plan
