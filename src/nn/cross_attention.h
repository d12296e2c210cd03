// Attention of a decoder's tokens to the texts that an encoder has read (Vaswani et al. 2017,
// section 3.2.3), confined to parts of them if the batch has bounds. If the batch names a state,
// the keys and values of the texts lie there: those of a text are computed once, in the pass that
// reads it.
#pragma once

#include <string>

#include "nn/attention.h"

namespace megatron::nn {

// Parameters <name>.q.weight [N D, H], <name>.kv.weight [2K D, H] = [k | v], <name>.output.weight
// [H, N D], and their biases. Tensor-parallel ranks hold equal shares of the heads: N and K must be
// multiples of their number; otherwise the constructor throws Error naming the numbers and flags.
class CrossAttention {
 public:
  // Reads the config's heads, sizes, scale and biases, and of the place what is not about rotation
  // and norms.
  CrossAttention(Builder& builder, const std::string& name, const AttentionConfig& config,
                 const AttentionPlace& place);
  // encoded: the output of the encoder, of the tokens of batch.encoder that this rank holds; empty
  // if there is none.
  Var operator()(Tape& tape, const Var& x_TH, const Var& encoded, const Batch& batch,
                 bool train) const;

  int64_t kv_heads() const { return kv_heads_; }  // key heads that this rank computes
  int64_t head_size() const { return config_.head_size; }

 private:
  Var continued(Tape& tape, const Var& q, const Var& encoded, const Batch& batch) const;
  ops::AttentionOptions options(const Batch& batch, bool train) const;
  // texts: the encoder's.
  Var keys_and_values(Tape& tape, const Var& encoded, const Batch& texts) const;

  AttentionConfig config_;  // for all ranks
  AttentionPlace place_;
  parallel::TensorParallel tensor_;
  parallel::ContextParallel context_;
  ColumnLinear q_, kv_;
  RowLinear output_;
  int64_t heads_, kv_heads_;  // on this rank
  uint64_t dropout_stream_;
};

}  // namespace megatron::nn
