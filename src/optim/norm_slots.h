// Positions of each rank's sums of squares among those of the whole model.
#pragma once

#include <span>
#include <vector>

#include "base/divide.h"
#include "kernels/elementwise.h"
#include "optim/optimizer.h"

namespace megatron::optim {

inline int64_t blocks_of(int64_t elements) { return ceil_div(elements, kernels::kNormBlock); }

// Sums over blocks of kernels::kNormBlock elements of each parameter, row-major from its beginning.
struct NormSlots {
  int64_t total = 0;           // blocks of all ranks' parameters
  int64_t detached = 0;        // of them, those of detached parameters, which are the last ones
  std::vector<int64_t> first;  // first block of each shard; -1: counted by other ranks
};

// The positions follow the order of the model, detached parameters after all others: each rank's
// shards are in that order, and parameters of different stages are in the order of the layers that
// first use them. The slices of one parameter follow one another in the order of their first
// elements in the whole parameter, whatever groups divide it. No other property of a layout affects
// them. Collective over `norm` (null: one rank). On meta, where the other ranks are unknown, the
// total assumes that every rank has as many.
NormSlots norm_slots(std::span<const parallel::Shard> shards, comm::Group* norm, Runtime& runtime);

}  // namespace megatron::optim
