// B sequences, S tokens each, N query heads, K key heads, D head size.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

struct Heads {
  Var q, k, v;  // [B,S,N,D], [B,S,K,D], [B,S,K,D]
};

// Angles of rotary positions; none: undefined. cos, sin [P, rotated pairs], positions i32 [B*S].
struct Rotary {
  Tensor cos, sin, positions;
  bool interleaved = false;
};

// Splits qkv [B*S, (N+2K) D] = [q heads | k heads | v heads] and rotates q and k (Su et al. 2021).
Heads split_heads(Tape& tape, const Var& qkv, int64_t batch, int64_t heads, int64_t key_heads,
                  const Rotary& rotary = {});

struct AttentionOptions {
  double scale = 1;
  bool causal = true;
  Tensor q_positions, k_positions;  // i32 [B,S]; undefined: 0..S-1
  Tensor q_begins;  // i32 [B,S]: lowest key position that each query sees; undefined: all
  kernels::DropoutArgs::Mask dropout;
};

// out [B*S, N*D] = softmax(scale q k^T over the seen keys) v.   Runs the fused kernel, or
// attention_composed where there is none.
Var attention(Tape& tape, const Heads& heads, const AttentionOptions& options);

// The definition by matrix products and a softmax; stores the S x S probabilities. No dropout.
Var attention_composed(Tape& tape, const Heads& heads, const AttentionOptions& options);

}  // namespace megatron::ops
