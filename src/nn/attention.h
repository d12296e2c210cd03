// Causal self-attention with grouped heads and optional rotary positions, confined to segments
// where the batch has them, and going on after what a state holds where the batch names one.
#pragma once

#include "nn/batch.h"
#include "nn/linear.h"
#include "ops/attention.h"

namespace megatron::nn {

struct AttentionConfig {
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_size = 0;
  bool qkv_bias = false, output_bias = false;
  double dropout = 0;
  uint64_t seed = 0;  // of the dropout
  int64_t layer = 0;  // in a SequenceState
};

// cos and sin of every position's angles, made once a model: [positions, pairs] f32 (f64). angle =
// position * base^(-2i/rotary dims) for pair i; computed in fp64, rounded once.
struct RotaryTable {
  Tensor cos, sin;
  static RotaryTable make(Runtime& runtime, DType model_type, int64_t positions,
                          int64_t rotary_dims, double base);
};

// Parameters <name>.qkv.weight [(N+2K) D, H] = [q | k | v], <name>.output.weight [H, N D], and
// their biases. Tensor-parallel ranks hold the heads in equal shares: N must be a multiple of their
// number, and K a multiple or a divisor of it (a key head is then shared by the ranks of its
// queries); else the constructor throws Error naming the numbers and flags.
class Attention {
 public:
  // rotary may be null: no rotation. It is borrowed.
  Attention(Builder& builder, const std::string& name, const AttentionConfig& config,
            const RotaryTable* rotary, parallel::Init init, parallel::Init output_init);
  Var operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train) const;

  int64_t kv_heads() const { return key_heads_; }  // whose keys and values this rank computes

 private:
  Var project(Tape& tape, const Var& x_TH) const;  // this rank's [q | k | v] [T, (N+2K) D]

  AttentionConfig config_;  // of all ranks
  parallel::TensorParallel tensor_;
  ColumnLinear qkv_;
  RowLinear output_;
  const RotaryTable* rotary_;
  int64_t heads_, key_heads_;  // of this rank
  uint64_t dropout_stream_;
};

}  // namespace megatron::nn
