// Where each rank's sums of squares stand among those of the whole model.
#pragma once

#include <span>
#include <vector>

#include "kernels/elementwise.h"
#include "optim/optimizer.h"

namespace megatron::optim {

inline int64_t blocks_of(int64_t elements) {
  return (elements + kernels::kNormBlock - 1) / kernels::kNormBlock;
}

// Sums over blocks of kernels::kNormBlock elements of each parameter, row-major from its begin.
struct NormSlots {
  int64_t total = 0;           // of all ranks' parameters
  std::vector<int64_t> first;  // of each shard: the place of its first block; -1: others count it
};

// The places follow the order of the model: each rank's shards come in that order, and parameters
// of different stages in that of the layer numbers in their names. Those of one parameter's
// tensor-parallel slices follow one another by rank. No other property of a layout changes them.
// Collective over groups.norm. On meta the total is groups.norm_blocks.
NormSlots norm_slots(std::span<const parallel::Shard> shards, const OptimizerGroups& groups,
                     Runtime& runtime);

// The total of a model of which `whole` are the undivided parameters, on so many tensor-parallel
// ranks.
int64_t norm_blocks(std::span<parallel::ParameterSpec* const> whole, int tensor_ranks);

}  // namespace megatron::optim
