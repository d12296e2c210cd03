// Euclidean norm of a model's weights.
#pragma once

#include <span>

#include "parallel/ranks.h"

namespace megatron::training {

// L2 norm over all elements of the model: sums of squares of fixed blocks, added in f64 in the
// order of the shards, then of the ranks. Collective. On meta it is 0, but allocates the same
// memory.
double weights_norm(std::span<const parallel::Shard> shards, const parallel::Ranks& ranks,
                    Runtime& runtime);

}  // namespace megatron::training
