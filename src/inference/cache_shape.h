// Size of an engine's key-value cache in pages, as its options and the memory allow.
#pragma once

#include <vector>

#include "inference/block_cache.h"
#include "inference/engine_options.h"
#include "inference/engine_ranks.h"
#include "models/stage.h"
#include "nn/sequence_state.h"

namespace megatron::inference {

struct CacheShape {
  BlockCacheOptions blocks;      // by layer group of the whole model: the same on all ranks
  BlockCacheOptions encoded;     // of an encoder's texts, in one group; without pages: none
  nn::SequenceStateShape state;  // for the layers of this rank
  // Group in `blocks` of each group in `state`; of that of cross attention, which is the last: 0,
  // the group in `encoded`.
  std::vector<size_t> groups;
};

// Collective over ranks.all: the number of pages is what every rank has memory for. Throws Error
// naming bytes and flags, on all ranks, if the memory does not suffice for one request.
CacheShape cache_shape(const models::Stage& stage, DType type, Runtime& runtime,
                       const EngineOptions& options, const EngineRanks& ranks);

}  // namespace megatron::inference
