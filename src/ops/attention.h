// B sequences, S tokens each, N query heads, K key heads, D head size, V size of a value: D, but in
// latent attention.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

struct Heads {
  Var q, k, v;  // [B,S,N,D], [B,S,K,D], [B,S,K,V]
  Var gate;     // [B*S, N*D]; only for gated PackedHeads
};

// Angles of rotary positions; undefined: no rotation. cos, sin [P, rotated pairs], positions i32
// [B*S].
struct Rotary {
  Tensor cos, sin, positions;
  bool interleaved = false;
};

// A product's [q heads | k heads | v heads], gated: [q heads | N heads of gates | k heads | v
// heads]. The ops below take ownership of its values: they rotate q and k in place (Su et al.
// 2021), so nothing else may read them, before or after.
struct PackedHeads {
  Var qkv;                                     // [B*S, (N+2K) D]; gated: [B*S, (2N+2K) D]
  int64_t batch = 1, heads = 1, kv_heads = 1;  // B, N, K
  Rotary rotary;
  bool gated = false;
};

// x [B*S, N*D] as heads [B,S,N,D]; a view.
Var as_heads(Tape& tape, const Var& x, int64_t batch, int64_t heads);

// Views of qkv.
Heads split_heads(Tape& tape, PackedHeads&& packed);

struct AttentionOptions {
  double scale = 1;
  bool causal = true;
  Tensor q_positions, k_positions;  // i32 [B,S]; undefined: 0..S-1
  // i32 [B,S]: lowest and highest key position that each query sees; undefined: no bound.
  // window_end only with causal false.
  Tensor window_start, window_end;
  int64_t window = 0, chunk = 0;  // see kernels/attention.h; 0: none
  double soft_cap = 0;            // applied to scaled scores; 0: none
  // [N], in the model's type: one additional score per head without a value vector; empty: none
  Weight sinks;
  int64_t first_sink = 0;  // index of the first head's sink, if `sinks` has those of more heads
  // f32 (f64) [N] of zeros if the sinks are not trained; undefined: they are, or there are none
  Tensor zero_sinks;
  // f32 (f64) [2R+1,N], any strides: added to the scores by the distance from query to key
  // (kernels/attention.h); empty: none. Its gradient has its type. Inside Tape::recompute() it must
  // be one of the values that the Bundle passes.
  Var bias;
  kernels::DropoutArgs::Mask dropout;
};

// Options of a call of the kernels, except the sinks and the gradient of the bias.
kernels::AttentionArgs call_form(const AttentionOptions& options);
kernels::AttentionBackwardArgs gradient_form(const AttentionOptions& options);

// out [B*S, N*V] = softmax(scale q k^T + bias over the seen keys) v. The gradient of sinks is
// written to its slot.
Var attention(Tape& tape, const Heads& heads, const AttentionOptions& options);

// Same bits as attention(split_heads(packed)), for heads without gates. Its backward writes the
// gradient of qkv into one tensor, whereas that of the two ops concatenates the gradients of q, k
// and v. The bias is an input of the same node.
Var attention(Tape& tape, PackedHeads&& packed, const AttentionOptions& options);

}  // namespace megatron::ops
