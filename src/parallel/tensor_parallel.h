// Ranks that share every layer: each holds a slice of its matrices (Shoeybi et al. 2019), and with
// `sequence` a slice of the tokens between them (Korthikanti et al. 2022).
#pragma once

#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::parallel {

// As a module sees it. Groups are borrowed; null: one rank, for which every call here is the
// identity.
struct TensorParallel {
  comm::Group* group = nullptr;
  comm::Group* async =
      nullptr;            // the same ranks, for calls that overlap with compute (comm/async.h)
  bool sequence = false;  // --sequence-parallel

  int rank() const { return group == nullptr ? 0 : group->rank(); }
  int size() const { return group == nullptr ? 1 : group->size(); }
  // Whether tokens are divided between the matrices.
  bool divides_tokens() const { return sequence && size() > 1; }
  // Of `tokens` rows between the matrices, those of this rank. Throws Error naming both numbers
  // when they cannot be divided evenly.
  Slice tokens(int64_t tokens) const;
};

}  // namespace megatron::parallel
