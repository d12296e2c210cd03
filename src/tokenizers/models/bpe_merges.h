// The merges of byte-pair encoding (Sennrich et al., 2016): of all neighbours that have a merge,
// the one of lowest rank is joined, the leftmost of equals, until none is left.
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
  // tiktoken's: the rank of a merge is the id of the two joined.
  explicit BpeMerges(const std::vector<Merge>& merges);

  // Joins scratch.symbols until no merge is left and, unless `ranges` is null, their ranges (one a
  // symbol), too.
  void apply(Scratch& scratch, std::vector<Range>* ranges) const;

 private:
  static constexpr int64_t kNoMerge = std::numeric_limits<int64_t>::max();
  int64_t merge_of(int32_t left, int32_t right) const {
    const int64_t* found = merges_.find(left, right);
    return found ? *found : kNoMerge;
  }
  void apply_short(Scratch& scratch, std::vector<Range>* ranges) const;
  void apply_long(Scratch& scratch, std::vector<Range>* ranges) const;

  PairMap merges_;  // rank << 32 | id of the two joined
};

}  // namespace megatron::tokenizers
