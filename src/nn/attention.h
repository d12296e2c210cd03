// Self-attention with grouped heads, causal or two-sided, confined to segments if the batch has
// them. Causal attention continues after a state's tokens if the batch names a state.
#pragma once

#include <optional>
#include <string>

#include "nn/batch.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/relative_positions.h"
#include "nn/rotary.h"
#include "ops/attention.h"

namespace megatron::nn {

// Normalization of queries and keys before rotation: each head by itself, all heads of a token
// together, or each head without a weight.
enum class QkNorm { none, head, full_width, l2 };
// An additional logit per head in the softmax, without a value: 0, or a parameter.
enum class Sinks { none, zero, learned };

struct AttentionConfig {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  bool qkv_bias = false, output_bias = false;
  double scale = 0;     // factor of the scores; 0: 1 / sqrt(head_size)
  double soft_cap = 0;  // soft cap of the scores; 0: none
  int64_t window = 0;   // most tokens that a query sees, including its own; 0: all
  int64_t chunk = 0;    // a query only sees the tokens of its chunk of this size; 0: all
  // Queries also see the tokens after them; a window then reaches as far to both sides: window - 1
  // tokens on each. chunk must be 0.
  bool two_sided = false;
  QkNorm qk_norm = QkNorm::none;
  Sinks sinks = Sinks::none;
  double qkv_clip = 0;  // queries, keys and values are clipped to [-clip, clip]; 0: not clipped
  // Multiplies attention's output elementwise by a sigmoid gate computed from the queries' input
  // (Qiu et al. 2025).
  bool output_gate = false;
  std::string rotary;  // name of the model's rotary table; empty: none
  RelativeBuckets relative;
  Temperature temperature;  // applied to queries after the rotation

  bool operator==(const AttentionConfig&) const = default;
  double score_scale() const;
  // Number of (query, key) pairs that attention computes in `length` tokens. A causal query's own
  // key counts half, so that a query that sees all before it sees half of all. Two-sided attention
  // counts all pairs.
  double seen_pairs(int64_t length) const;
};

// Per-layer properties of attention that are not in its config.
struct AttentionPlace {
  int64_t hidden = 0;
  int64_t input = 0;                         // width of x; 0: hidden
  NormConfig norm;                           // norm of queries and keys
  const RotaryTables* rotary = nullptr;      // borrowed; null: no rotation
  const RotaryTable* temperature = nullptr;  // borrowed; null: none
  double dropout = 0;
  uint64_t seed = 0;  // of the dropout
  int64_t layer = 0;  // in a SequenceState
  int64_t index = 0;  // of the layer in the model
  parallel::Init init, output_init;
};

// Attention of the heads of the tokens that each context-parallel rank holds, as module "core_attn"
// of the tape. context must outlive the tape.
Var core_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                   const Batch& batch, const parallel::ContextParallel& context);
// Attention of heads [1,T,N,D] whose tokens are texts of different lengths, each by itself, without
// gradients: [T, N D].
Var attend_texts(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                 std::span<const TextRun> texts);
// Throws Error if context-parallel ranks that exchange heads cannot divide those of a
// tensor-parallel rank: `heads` and `kv_heads` of the model, among `tensor` such ranks.
void check_exchange(int64_t heads, int64_t kv_heads, int tensor,
                    const parallel::ContextParallel& context);

// Parameters <name>.qkv.weight [(N+2K) D, input] = [q | k | v], with an output gate [(2N+2K) D,
// input] = [q | gate | k | v], <name>.output.weight [H, N D], their biases, <name>.q_norm.weight
// and k_norm.weight ([D], or for full_width [N D] and [K D]) with biases for LayerNorm, and
// <name>.sinks [N]. Tensor-parallel ranks hold equal shares of the heads: N must be a multiple of
// their number, and K a multiple or a divisor of it (a key head is then shared by the ranks of its
// queries); otherwise the constructor throws Error naming the numbers and flags.
class Attention {
 public:
  Attention(Builder& builder, const std::string& name, const AttentionConfig& config,
            const AttentionPlace& place);
  // bias: of the scores, by the distances of keys (RelativePositions); or none.
  Var operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train,
                 const Var& bias = {}) const;

  int64_t kv_heads() const { return kv_heads_; }  // key heads that this rank computes

 private:
  struct Norm {
    Weight weight, bias;
  };
  Norm add_norm(Builder& builder, const std::string& name, int64_t heads) const;
  Var project(Tape& tape, const Var& x_TH) const;  // this rank's [q | k | v] [T, (N+2K) D]
  ops::AttentionOptions options(const Batch& batch, bool train) const;
  ops::Rotary rotary(const Batch& batch) const;
  double lost_amplitude() const;
  bool changes_heads() const;  // true if heads change between projection and rotation
  ops::Heads changed(Tape& tape, ops::PackedHeads&& packed) const;
  Var normed(Tape& tape, const Var& x, const Norm& norm, int64_t heads) const;

  AttentionConfig config_;  // for all ranks
  AttentionPlace place_;
  parallel::TensorParallel tensor_;
  parallel::ContextParallel context_;
  ColumnLinear qkv_;
  Norm q_norm_, k_norm_;
  Weight sinks_;
  Tensor zero_sinks_;
  RowLinear output_;
  int64_t heads_, kv_heads_;  // on this rank
  uint64_t dropout_stream_;
};

}  // namespace megatron::nn
