// Multi-head latent attention (DeepSeek-AI 2024): keys and values are products of one latent vector
// per token, and all heads share one rotary key. B sequences of S tokens, T = B * S; N heads.
#pragma once

#include "ops/attention.h"

namespace megatron::ops {

// Sizes of a head: P elements of its query and key are not rotated, the R after them are; V of its
// value.
struct LatentHead {
  int64_t plain = 0, rotated = 0, value = 0;

  int64_t key() const { return plain + rotated; }
  bool operator==(const LatentHead&) const = default;
};

// Keys [T,N,P+R] of kv [T, N (P+V)] = N times [key | value], and of the rotary key [T,R] that the
// heads share; rotary: not yet applied to it.
Tensor latent_keys(const Tensor& kv, const Tensor& rotary_key, const LatentHead& head,
                   const Rotary& rotary, Tape& tape);
// Rotates the last R elements of each head of q [T, N (P+R)] in place.
void rotate_latent_queries(const Tensor& q, const LatentHead& head, const Rotary& rotary,
                           Tape& tape);
// The values [T,N,V] of kv; a view.
Tensor latent_values(const Tensor& kv, const LatentHead& head);

// Heads of q [T, N (P+R)], kv [T, N (P+V)] and the shared rotary key [T,R]: q and k [B,S,N,P+R], v
// [B,S,N,V]. Takes ownership of q's values, which are rotated in place: nothing else may read them,
// before or after.
Heads latent_heads(Tape& tape, Var&& q, const Var& kv, const Var& rotary_key, int64_t sequences,
                   const LatentHead& head, const Rotary& rotary);

}  // namespace megatron::ops
