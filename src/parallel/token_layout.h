// Assigns the tokens of a micro-batch's sequences to context-parallel ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace megatron::parallel {

// Consecutive tokens of a sequence.
struct TokenRun {
  int64_t begin = 0, size = 0;
  bool operator==(const TokenRun&) const = default;
};

// Tokens held by context-parallel rank `rank` of `ranks`. The rank holds the same runs of every
// sequence, concatenated: tensors with one row per token have rows [sequences, held()]. Outside the
// matrix products, sequence-parallel ranks hold slices of these rows (TensorParallel::tokens).
//
// Each sequence is cut into 2 * ranks chunks of equal size. A rank holds chunks `rank` and
// 2 * ranks - 1 - rank, so that causal attention takes the same work on all ranks (Llama 3, 3.3.2).
// A single rank holds whole sequences.
struct TokenLayout {
  int64_t sequences = 0;
  int64_t length = 0;  // tokens of a whole sequence
  int rank = 0, ranks = 1;

  bool operator==(const TokenLayout&) const = default;
  int64_t held() const { return length / ranks; }  // tokens per sequence on this rank
  int64_t rows() const { return sequences * held(); }
  std::vector<TokenRun> runs() const;  // runs within each sequence, in ascending order
  TokenLayout of_rank(int other) const;
  // Throws Error naming the flags if the length cannot be divided into chunks.
  void check() const;
};

// Reduces `values` [sequences, length] in place to the values of the tokens that the rank holds.
template <class T>
void keep_held(const TokenLayout& layout, std::vector<T>& values) {
  if (layout.ranks == 1 || values.empty()) return;
  const std::vector<TokenRun> runs = layout.runs();
  auto to = values.begin();
  for (int64_t s = 0; s < layout.sequences; ++s)
    for (const TokenRun& run : runs) {
      const auto begin = values.begin() + s * layout.length + run.begin;
      to = std::copy(begin, begin + run.size, to);
    }
  values.erase(to, values.end());
}

}  // namespace megatron::parallel
