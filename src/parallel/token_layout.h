// Assigns the tokens of a micro-batch's sequences to context-parallel ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace megatron::parallel {

// Tokens held by context-parallel rank `rank` of `ranks`: the same number of each sequence,
// concatenated, so that tensors with one row per token have rows [sequences, held()]. Outside the
// matrix products, sequence-parallel ranks hold slices of these rows (TensorParallel::tokens).
struct TokenLayout {
  int64_t sequences = 0;
  int64_t length = 0;  // tokens of a whole sequence
  int rank = 0, ranks = 1;
  // Neighbouring ranks that exchange heads for tokens in two-level exchanges
  // (ContextExchange::a2a_p2p); 1: there is one level.
  int inner = 1;
  // True if every document of a sequence is cut by itself, so that causal attention takes the same
  // work on all ranks; false: sequences are cut as if each was one document, so that a rank holds
  // runs() of it, through which a state is handed on (parallel/state_space_ranks.h).
  bool by_document = true;

  bool operator==(const TokenLayout&) const = default;
  // The rank `distance` places after this one in the ring of all ranks; negative: before it.
  int rank_at(int distance) const { return (rank + distance + ranks) % ranks; }
  int64_t held() const { return length / ranks; }  // tokens per sequence on this rank
  int64_t rows() const { return sequences * held(); }
  // Throws Error naming the flags if the length, which this flag gave, cannot be divided into 2 *
  // ranks chunks.
  void check(std::string_view flag = "seq-length") const;

  // The two levels: this rank in its group of neighbours, whose tokens are the whole sequences, and
  // its group among all.
  TokenLayout inner_level() const { return {sequences, held() * inner, rank % inner, inner}; }
  TokenLayout ring_level() const { return {sequences, length, rank / inner, ranks / inner}; }

  // Consecutive tokens [begin, end) of a sequence.
  struct Run {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(const Run&) const = default;
  };
  // The tokens of a rank, ascending, if each sequence is one document or cut like one.
  std::array<Run, 2> runs(int of_rank) const;
};

// Index within its sequence of every token of every rank, ascending in each sequence: [ranks,
// sequences, held()].
//
// Each document of a sequence is cut into 2 * ranks chunks, of which a rank holds chunks `rank` and
// 2 * ranks - 1 - rank, so that causal attention takes the same work on all ranks (Llama 3, 3.3.2).
// Tokens that are left over go to the ranks that have the fewest so far: no document is padded, and
// all ranks hold equally many tokens. A single rank holds whole sequences.
//
// segment_starts [sequences, length] (nn/batch.h): a document begins at each token that is its own
// start. Empty, or not layout.by_document: each sequence is cut as one document.
std::vector<int32_t> tokens_by_rank(const TokenLayout& layout,
                                    std::span<const int32_t> segment_starts = {});

// The same for the groups of layout.inner neighbouring ranks, each of which holds the tokens of its
// ranks: [ranks / inner, sequences, inner * held()]. by_rank: the result of tokens_by_rank().
std::vector<int32_t> tokens_by_group(const TokenLayout& layout, std::span<const int32_t> by_rank);

}  // namespace megatron::parallel
