// Multi-head latent attention (DeepSeek-AI 2024, section 2.1): the keys and values of all heads are
// products of one latent vector per token, which is what inference caches, with one rotary key for
// all heads.
#pragma once

#include <optional>
#include <string>

#include "nn/attention.h"
#include "nn/replicated_linear.h"
#include "nn/sequence_state.h"
#include "ops/latent_attention.h"

namespace megatron::nn {

struct LatentAttentionConfig {
  int64_t heads = 0;
  int64_t query_rank = 0;   // width of the latent of queries; 0: queries are products of the input
  int64_t latent_rank = 0;  // width of the latent of keys and values
  ops::LatentHead head;
  bool normalized = true;      // latents have norms
  double norm_epsilon = 1e-6;  // of these norms
  bool bias = false;           // of the products that give latents
  bool output_bias = false;
  std::string rotary;  // name of the model's rotary table; empty: none

  bool operator==(const LatentAttentionConfig&) const = default;
  // Width of what inference caches per token: the latent and the rotary key.
  int64_t cached() const { return latent_rank + head.rotated; }
};

struct LatentAttentionPlace {
  int64_t hidden = 0;
  Normalization norm = Normalization::rms_norm;  // kind of the latents' norms
  const RotaryTables* rotary = nullptr;          // borrowed; null: no rotation
  double score_scale = 1;
  double dropout = 0;
  uint64_t seed = 0;  // of the dropout
  int64_t layer = 0;  // in a SequenceState
  int64_t index = 0;  // of the layer in the model
  parallel::Init init, output_init;
};

// The matrix that makes keys and values of latents, by the end of its parameter's name.
inline constexpr std::string_view kLatentKeysAndValues = ".kv_up.weight";

// Parameters, with N heads, head sizes P + R (keys) and V (values), query rank Q and latent rank L:
// <name>.q_down.weight [Q,H], .q_latent_norm.weight [Q] and .q_up.weight [N (P+R), Q], or .q.weight
// [N (P+R), H]; .kv_down.weight [L+R,H] = [latent | rotary key], .kv_latent_norm.weight [L],
// .kv_up.weight [N (P+V), L], .output.weight [H, N V]. Tensor-parallel ranks hold equal shares of
// the heads and all of the latents; with divided tokens each rank computes the latents of its own.
// Throws Error if the heads cannot be divided.
class LatentAttention {
 public:
  LatentAttention(Builder& builder, const std::string& name, const LatentAttentionConfig& config,
                  const LatentAttentionPlace& place);
  Var operator()(Tape& tape, const Var& x_TH, const Batch& batch, bool train) const;

  // What inference keeps of each token.
  LayerCache cache() const { return {.latent = config_.cached()}; }

 private:
  // A product whose result is a latent, and its norm.
  struct Latent {
    ReplicatedLinear down;
    std::optional<AddNorm> norm;
  };
  std::optional<AddNorm> latent_norm(Builder& builder, const std::string& name,
                                     int64_t width) const;
  // The input of the queries' product: the normalized latent, or x.
  Var query_input(Tape& tape, const Var& x_TH) const;
  Var normed(Tape& tape, const std::optional<AddNorm>& norm, const Var& latent) const;
  ops::Heads heads(Tape& tape, const Var& query_input, const Var& latent, const Var& rotary_key,
                   const Batch& batch) const;
  Var continued(Tape& tape, const Var& query_input, const Var& latent, const Var& rotary_key,
                const Batch& batch) const;
  ops::AttentionOptions options(const Batch& batch, bool train) const;
  ops::Rotary rotary(const Batch& batch) const;

  LatentAttentionConfig config_;  // for all ranks
  LatentAttentionPlace place_;
  parallel::TensorParallel tensor_;
  parallel::ContextParallel context_;
  std::optional<Latent> q_latent_;
  ColumnLinear q_;
  Latent latent_;
  ColumnLinear kv_up_;
  RowLinear output_;
  int64_t heads_;  // on this rank
  uint64_t dropout_stream_;
};

}  // namespace megatron::nn
