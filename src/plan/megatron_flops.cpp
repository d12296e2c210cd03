#include "plan/megatron_flops.h"

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

FlopTerms output(const MegatronShape& s) { return {2 * s.hidden_size * s.padded_vocab_size, 0}; }

}  // namespace

double FlopTerms::total(const Tokens& tokens) const {
  return static_cast<double>(wide_total(*this, tokens));
}

FlopTerms megatron_flops(const MegatronShape& s, Attention keys) {
  FlopTerms forward = output(s);
  for (int64_t i = 0; i < s.num_layers; ++i)
    forward = forward + attention(s) + (s.has_experts(i) ? experts(s) : mlp(s));
  const FlopTerms step = 3 * forward;
  return {step.token, keys == Attention::full ? 2 * step.pair : step.pair};
}

}  // namespace megatron::plan
