// Which tokens of other context-parallel ranks a rank's queries see through a window or in a chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/token_layout.h"

namespace megatron::parallel {

// The keys that a query of a layer sees. window, chunk: see kernels/attention.h; 0: none.
struct AttentionReach {
  int64_t window = 0, chunk = 0;
  bool two_sided = false;  // queries also see later tokens

  bool operator==(const AttentionReach&) const = default;
  bool limited() const { return window > 0 || chunk > 0; }
  // True if it can hide some tokens of a sequence of this length.
  bool limited_in(int64_t length) const {
    return (window > 0 && window < length) || (chunk > 0 && chunk < length);
  }
};

// Tokens that ranks see in sequences of one document each. Ranges are in ascending order.
class SeenTokens {
 public:
  using Run = TokenLayout::Run;
  SeenTokens(const TokenLayout& layout, const AttentionReach& reach)
      : layout_(layout), reach_(reach) {}

  // Tokens that the queries of `rank` see, those that it holds included.
  std::vector<Run> seen(int rank) const;
  // Those that `holder` holds.
  std::vector<Run> seen(int rank, int holder) const;
  // Number of tokens per sequence.
  int64_t count(int rank, int holder) const;
  // Index of a token among those that `rank` holds, or among those that it sees.
  int64_t index_held(int rank, int64_t token) const;
  int64_t index_seen(int rank, int64_t token) const;
  // Number of tokens per sequence that ranks see but do not hold, summed over all ranks.
  int64_t exchanged() const;
  // True if that is at most half of the number in an exchange of all tokens.
  bool few() const;

 private:
  TokenLayout layout_;
  AttentionReach reach_;
};

// Rows of the keys that ranks send to each other if windows or chunks limit what queries see of
// their documents. In step i of a ring of n ranks, rank r attends to keys of rank r - i, which
// sends it the rows that r's queries see.
struct SeenRows {
  // [n][count], the first empty: element i lists, in ascending order, the rows of [sequences *
  // held()] that this rank sends to rank + i, and those that it receives from rank - i.
  std::vector<std::vector<int32_t>> sent, received;
};

// indices: of tokens_by_rank() or tokens_by_group(). segment_starts, segment_ends [sequences,
// length] (nn/batch.h); empty: 0, and length - 1.
SeenRows seen_rows(const TokenLayout& layout, std::span<const int32_t> indices,
                   std::span<const int32_t> segment_starts, std::span<const int32_t> segment_ends,
                   const AttentionReach& reach);

}  // namespace megatron::parallel
