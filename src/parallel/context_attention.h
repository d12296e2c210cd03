// Context parallelism: attention over sequences whose tokens are divided among ranks.
#pragma once

#include "comm/group.h"
#include "ops/attention.h"
#include "parallel/token_layout.h"

namespace megatron::parallel {

// How ranks exchange tokens in attention:
//   p2p         keys and values are passed around a ring (Liu et al. 2023)
//   all_gather  every rank gets the keys and values of all tokens (Llama 3, 3.3.2)
//   a2a         every rank gets all tokens of a share of the heads (Jacobs et al. 2023)
enum class ContextExchange : uint8_t { p2p, all_gather, a2a };
std::string_view name(ContextExchange exchange);  // value of --cp-comm-type

// Tokens of a micro-batch: B sequences of S tokens; each of n ranks holds S' tokens per sequence.
struct ContextTokens {
  TokenLayout layout;
  // All undefined for one rank.
  Tensor rank_indices;        // i32 [n*B*S']: index within its sequence of every rank's tokens
  Tensor all_indices;         // i32 [B*S]: 0..S-1 in each sequence
  Tensor part_rows;           // i32 [n*B*S']: row, in [B*S], of every rank's tokens
  Tensor whole_rows;          // i32 [B*S]: row of each token in [n*B*S'], the inverse
  Tensor all_segment_starts;  // i32 [B*S] (nn/batch.h); undefined: 0

  Tensor indices(int rank) const {  // i32 [B*S']; undefined for one rank: 0..S-1
    return rank_indices.defined() ? rank_indices.slice(0, rank * layout.rows(), layout.rows())
                                  : Tensor();
  }
};

// The context-parallel ranks. Groups are borrowed; null: one rank.
struct ContextParallel {
  comm::Group* group = nullptr;
  comm::Group* async = nullptr;  // the same ranks, for calls that overlap with compute
  ContextExchange exchange = ContextExchange::p2p;
};

// Attention of this rank's queries to the keys of the whole sequences; same as ops::attention on
// one rank. heads: queries [B,S',N,D], keys and values [B,S',K,D] of this rank's tokens. options
// must have no positions, and its window_start is for this rank's tokens. a2a requires that N is a
// multiple of the number of ranks, that K is a multiple or a divisor of it, and that there are no
// sinks.
Var context_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                      const ContextTokens& tokens, const ContextParallel& context);

}  // namespace megatron::parallel
