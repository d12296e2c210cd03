// Context parallelism: attention over sequences whose tokens are divided among ranks.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "comm/group.h"
#include "kernels/causal_conv.h"
#include "ops/attention.h"
#include "parallel/seen_tokens.h"

namespace megatron::parallel {

// How ranks exchange tokens in attention:
//   p2p         keys and values are passed around a ring (Liu et al. 2023)
//   all_gather  every rank gets the keys and values of all tokens (Llama 3, 3.3.2)
//   a2a         every rank gets all tokens of a share of the heads (Jacobs et al. 2023)
//   a2a_p2p     a2a in groups of neighbouring ranks, p2p between ranks with the same heads
//               (Fang and Zhao 2024)
enum class ContextExchange : uint8_t { p2p, all_gather, a2a, a2a_p2p };
inline constexpr std::array kContextExchanges = {ContextExchange::p2p, ContextExchange::all_gather,
                                                 ContextExchange::a2a, ContextExchange::a2a_p2p};
std::string_view name(ContextExchange exchange);  // value of --cp-comm-type

// In tensors of runs extended by the inputs that convolutions read before them: rows before a run.
inline constexpr int64_t kRunHalo = kernels::kMaxConvolution - 1;

// Rows of keys that ranks pass to each other in attention over documents (SeenRows), for one reach.
struct PassedRows {
  class Steps {
   public:
    // Allocates memory for all rows of the layout in each step. counts: number of rows in each
    // step.
    Steps(Arena& arena, const TokenLayout& layout, std::vector<int64_t> counts);
    // steps: SeenRows::sent or received.
    void set(const std::vector<std::vector<int32_t>>& steps, Stream& stream);

    int64_t count(int step) const { return counts_[static_cast<size_t>(step)]; }
    Tensor rows(int step) const { return rows_.select(0, step - 1).slice(0, 0, count(step)); }
    Tensor places(int step) const { return places_.select(0, step - 1); }

   private:
    std::vector<int64_t> counts_;
    // i32 [n-1,B*S'], for steps 1 to n - 1. rows: those that are passed, ascending. places: index
    // of each row among these; -1: it is not passed.
    Tensor rows_, places_;
  };

  // Starts with the number of rows of sequences of one document each.
  PassedRows(Arena& arena, const TokenLayout& layout, const AttentionReach& reach);

  AttentionReach reach;
  Steps sent, received;  // as in SeenRows
};

// Tokens of B sequences of S tokens that ranks exchange; each of n ranks holds S' tokens per
// sequence.
struct ExchangedTokens {
  TokenLayout layout;
  // All undefined for one rank.
  Tensor rank_indices;        // i32 [n*B*S']: index within its sequence of every rank's tokens
  Tensor all_indices;         // i32 [B*S]: 0..S-1 in each sequence
  Tensor part_rows;           // i32 [n*B*S']: row, in [B*S], of every rank's tokens
  Tensor whole_rows;          // i32 [B*S]: row of each token in [n*B*S'], the inverse
  Tensor all_segment_starts;  // i32 [B*S] (nn/batch.h); undefined: 0
  Tensor all_segment_ends;    // i32 [B*S] (nn/batch.h); undefined: S - 1
  // Start of each token's document, for states that are passed from run to run (TokenLayout::runs,
  // S'/2 tokens each). Undefined if each sequence is one document, or is cut by document. Counted
  // from the first token of a row, which is a run (run_starts), or a run with the kRunHalo tokens
  // before it (extended_starts).
  Tensor run_starts;       // i32 [2B, S'/2]; negative: before the run
  Tensor extended_starts;  // i32 [2B, kRunHalo + S'/2]; at least 0

  // The keys that ranks pass to each other if sequences have several documents: one element for
  // each window or chunk size that is shorter than a sequence. Empty if micro-batches are recorded
  // as CUDA graphs, whose messages have fixed sizes: all keys are then passed.
  std::vector<PassedRows> passed;

  const PassedRows* passed_rows(const AttentionReach& reach) const {
    const auto found = std::ranges::find(passed, reach, &PassedRows::reach);
    return found == passed.end() ? nullptr : &*found;
  }
  Tensor indices(int rank) const {  // i32 [B*S']; undefined for one rank: 0..S-1
    return rank_indices.defined() ? rank_indices.slice(0, rank * layout.rows(), layout.rows())
                                  : Tensor();
  }
};

// Tokens of a micro-batch.
struct ContextTokens : ExchangedTokens {
  // The levels of ContextExchange::a2a_p2p. inner: the ranks of a group of neighbours, whose tokens
  // in ascending order are taken as the whole sequences; only its rows and segments are
  // defined. ring: the groups as ranks; only its indices are defined.
  ExchangedTokens inner, ring;
};

// The context-parallel ranks. Groups are borrowed; null: one rank.
struct ContextParallel {
  comm::Group* group = nullptr;
  comm::Group* async = nullptr;  // the same ranks, for calls that overlap with compute
  // The levels of ContextExchange::a2a_p2p, and the ranks of the ring for overlapped calls.
  comm::Group *inner = nullptr, *ring = nullptr, *ring_async = nullptr;
  ContextExchange exchange = ContextExchange::p2p;

  // Number of ranks that divide the heads of attention.
  int head_ranks() const;
};

// Attention of this rank's queries to the keys of the whole sequences; same as ops::attention on
// one rank. heads: queries [B,S',N,D], keys and values [B,S',K,D] of this rank's tokens. options
// must have no positions, and its window_start and window_end are for this rank's tokens. N must be
// a multiple of head_ranks(), and K a multiple or a divisor of it. Every rank passes the bias of
// all N heads; its gradient on a rank is what the rank's own queries, or in exchanges of heads its
// own heads, contribute. The caller sums it over the ranks of context.group.
Var context_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                      const ContextTokens& tokens, const ContextParallel& context);

// Attention of this rank's queries to keys and values [B,E',K,D] of another text of each sequence,
// which ranks divide as `keys` says: those of all ranks are gathered, whatever the exchange.
// options: not causal, without windows and positions; window_start and window_end are indices in
// the other text. queries, keys: the tokens of the sequences and of the other text.
Var cross_attention(Tape& tape, const ops::Heads& heads, ops::AttentionOptions options,
                    const ContextTokens& queries, const ContextTokens& keys,
                    const ContextParallel& context);

}  // namespace megatron::parallel
