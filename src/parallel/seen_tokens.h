// Which tokens of other context-parallel ranks a rank's queries see through a window or in a chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/token_layout.h"

namespace megatron::parallel {

// For sequences of one document each. Ranges are in ascending order.
class SeenTokens {
 public:
  using Run = TokenLayout::Run;
  // window, chunk: see kernels/attention.h; 0: none. two_sided: queries also see later tokens.
  SeenTokens(const TokenLayout& layout, int64_t window, int64_t chunk, bool two_sided = false)
      : layout_(layout), window_(window), chunk_(chunk), two_sided_(two_sided) {}

  // Tokens that the queries of `rank` see, those that it holds included.
  std::vector<Run> seen(int rank) const;
  // Those that `holder` holds.
  std::vector<Run> seen(int rank, int holder) const;
  // Number of tokens per sequence.
  int64_t count(int rank, int holder) const;
  // Index of a token among those that `rank` holds, or among those that it sees.
  int64_t index_held(int rank, int64_t token) const;
  int64_t index_seen(int rank, int64_t token) const;
  // Number of tokens per sequence that ranks see of others, over all ranks.
  int64_t exchanged() const;
  // True if that is at most half of what it is if each rank gets all tokens of the others.
  bool few() const;

 private:
  TokenLayout layout_;
  int64_t window_, chunk_;
  bool two_sided_;
};

}  // namespace megatron::parallel
