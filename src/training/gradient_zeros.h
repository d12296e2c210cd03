// How many elements of the gradients are exactly zero (--log-num-zeros-in-grad).
#pragma once

#include <cstdint>
#include <span>

#include "parallel/placement.h"
#include "parallel/ranks.h"

namespace megatron::training {

// Of all gradients of the model, each element counted once whatever ranks hold it; rows that only
// pad the vocabulary do not count. After a step, before the next. Gradients of a GPU are copied to
// the host for it. Collective over ranks.norm().
int64_t gradient_zeros(std::span<const parallel::Shard> shards, const parallel::Ranks& ranks,
                       Runtime& runtime);

}  // namespace megatron::training
