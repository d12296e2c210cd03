// Tensor parallelism: ranks share every layer, and each holds a slice of its matrices (Shoeybi et
// al. 2019), and with `sequence` a slice of the tokens between them (Korthikanti et al. 2022).
#pragma once

#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::parallel {

// The group as seen by a module. Groups are borrowed; null: one rank, for which every call here is
// the identity.
struct TensorParallel {
  comm::Group* group = nullptr;
  comm::Group* async =
      nullptr;            // the same ranks, for calls that overlap with compute (comm/async.h)
  bool sequence = false;  // --sequence-parallel

  int rank() const { return group == nullptr ? 0 : group->rank(); }
  int size() const { return group == nullptr ? 1 : group->size(); }
  // True if tokens are divided among the ranks outside the matrix products.
  bool divides_tokens() const { return sequence && size() > 1; }
  // This rank's share of `tokens` rows outside the matrix products. Throws Error naming both
  // numbers if they cannot be divided evenly.
  Slice tokens(int64_t tokens) const;
};

}  // namespace megatron::parallel
