// Code shared by the exchanges of context_attention.h. B sequences of S tokens; each of n ranks
// holds S' tokens per sequence.
#pragma once

#include "parallel/collectives.h"
#include "parallel/context_attention.h"

namespace megatron::parallel {

enum class ContextCopy { to_whole, to_part };

// Ranks that exchange tokens, and the tokens of each. Borrows the groups.
class ContextRanks {
 public:
  // async: the same ranks, for calls that overlap with compute; may be null.
  ContextRanks(comm::Group& group, comm::Group* async, const ExchangedTokens& tokens)
      : group_(&group), overlapped_(async == nullptr ? &group : async), tokens_(tokens) {}

  comm::Group& group() const { return *group_; }
  comm::Group& overlapped() const { return *overlapped_; }  // for calls overlapped with compute
  int size() const { return tokens_.layout.ranks; }
  int rank() const { return tokens_.layout.rank; }
  int at(int distance) const { return tokens_.layout.rank_at(distance); }
  int64_t sequences() const { return tokens_.layout.sequences; }
  int64_t length() const { return tokens_.layout.length; }
  int64_t held() const { return tokens_.layout.held(); }
  const ExchangedTokens& tokens() const { return tokens_; }
  // i32 [B,S']: index within its sequence of each token of a rank.
  Tensor indices(int rank) const { return tokens_.indices(rank).view({sequences(), held()}); }

  // Allocates a buffer with one part [B,S',heads,D] per rank.
  Tensor parts(Tape& tape, int64_t heads, int64_t head_size, DType type) const {
    return communication_buffer(tape, {size() * sequences(), held(), heads, head_size}, type,
                                "context.parts");
  }
  Tensor part_of(const Tensor& parts, int rank) const {
    return parts.slice(0, rank * sequences(), sequences());
  }
  // Copies between the parts of all ranks and whole sequences [B,S,heads,D].
  void copy(Tape& tape, const Tensor& parts, const Tensor& whole, ContextCopy direction) const;

 private:
  comm::Group *group_, *overlapped_;
  ExchangedTokens tokens_;
};

// The keys that queries see with these options.
AttentionReach reach_of(const ops::AttentionOptions& options);

// x itself, or a copy of it in another type.
Tensor of_type(Tape& tape, const Tensor& x, DType type, std::string_view label);

// Attention with ContextExchange::p2p. If tokens() has the rows that queries with this reach see,
// ranks exchange only these rows.
Var ring_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                   const ContextRanks& ranks);

// Attention to sequences of one document, with p2p or all_gather, where windows hide most keys:
// each rank gets only the keys and values that its queries see, from the ranks that hold them.
Var seen_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                   const ContextRanks& ranks);

}  // namespace megatron::parallel
