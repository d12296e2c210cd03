// Where each rank's sums of squares stand among those of the whole model.
#pragma once

#include <span>
#include <vector>

#include "base/divide.h"
#include "kernels/elementwise.h"
#include "optim/optimizer.h"

namespace megatron::optim {

inline int64_t blocks_of(int64_t elements) { return ceil_div(elements, kernels::kNormBlock); }

// Sums over blocks of kernels::kNormBlock elements of each parameter, row-major from its begin.
struct NormSlots {
  int64_t total = 0;           // of all ranks' parameters
  std::vector<int64_t> first;  // of each shard: the place of its first block; -1: others count it
};

// The places follow the order of the model: each rank's shards come in that order, and parameters
// of different stages in that of the layer numbers in their names. The slices of one parameter
// follow one another in the order of their first elements in the whole of it, whatever groups divide
// it. No other property of a layout changes them. Collective over `norm` (null: one rank). On meta,
// where nothing is known of the others, the total is as if every rank had as much.
NormSlots norm_slots(std::span<const parallel::Shard> shards, comm::Group* norm, Runtime& runtime);

}  // namespace megatron::optim
