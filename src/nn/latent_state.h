// Latent attention of new tokens to the latents that a SequenceState holds.
#pragma once

#include "nn/linear.h"
#include "nn/sequence_state.h"
#include "ops/latent_attention.h"

namespace megatron::nn {

// T new tokens, N heads on this rank, latents of L elements, rotary keys of R.
struct LatentTokens {
  Tensor q;                   // [T, N (P+R)], rotated in place
  Tensor latent, rotary_key;  // [T,L], [T,R]
};

// Stores the latents and rotary keys of the new tokens in their pages, and returns the result of
// attention [T, N V] over all tokens that they see, without gradients. kv_up: the product that
// makes keys and values of latents. With SequenceStateShape::absorbed, queries are multiplied by
// the keys' part of its matrix, and the weighted sums of latents by the values' part (DeepSeek-AI
// 2024, section 2.1.2), unless it has an adapter; otherwise keys and values are computed again, and
// the result has the bits of one pass over the whole sequence.
Tensor attend_to_latents(Tape& tape, const SequenceState& state, int64_t layer,
                         const ops::LatentHead& head, const ops::Rotary& rotary, double scale,
                         const LatentTokens& tokens, const ColumnLinear& kv_up,
                         const Continuation& at);

}  // namespace megatron::nn
