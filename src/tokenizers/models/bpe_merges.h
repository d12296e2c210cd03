// The merges of byte-pair encoding (Sennrich et al., 2016): repeatedly joins the adjacent pair
// whose merge has the lowest rank, the leftmost among equals, until no merge applies.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tokenizers/definition.h"
#include "tokenizers/models/pair_map.h"
#include "tokenizers/models/scratch.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

class BpeMerges {
 public:
  explicit BpeMerges(const Definition& definition);
  // tiktoken's merges: the rank of a merge is the id of the joined token.
  explicit BpeMerges(const std::vector<Merge>& merges);

  // Joins scratch.symbols until no merge applies and, unless `ranges` is null, also their ranges
  // (one per symbol).
  void apply(Scratch& scratch, std::vector<Range>* ranges) const;

 private:
  static constexpr int64_t kNoMerge = std::numeric_limits<int64_t>::max();
  int64_t merge_of(int32_t left, int32_t right) const {
    const int64_t* found = merges_.find(left, right);
    return found ? *found : kNoMerge;
  }
  void apply_short(Scratch& scratch, std::vector<Range>* ranges) const;
  void apply_long(Scratch& scratch, std::vector<Range>* ranges) const;

  PairMap merges_;  // rank << 32 | id of the merged token
};

}  // namespace megatron::tokenizers
