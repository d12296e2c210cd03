// Counts the elements of the gradients that are exactly zero (--log-num-zeros-in-grad).
#pragma once

#include <cstdint>
#include <span>

#include "parallel/placement.h"
#include "parallel/ranks.h"

namespace megatron::training {

// Number of zeros in all gradients of the model. Each element counts once, whichever ranks hold it;
// rows that only pad the vocabulary do not count. Call it after a step and before the next. GPU
// gradients are copied to the host. Collective over ranks.norm().
int64_t gradient_zeros(std::span<const parallel::Shard> shards, const parallel::Ranks& ranks,
                       Runtime& runtime);

}  // namespace megatron::training
