// Reductions in rank order, which NCCL would round at every rank.
#pragma once

#include "comm/group.h"

namespace megatron::comm {

struct RankOrder {
  const void* sources;
  int64_t stride;  // elements between the data of consecutive ranks
  int ranks;
  void* out;
  int64_t count;
  DType type;
  Reduce op;
};

// Nccl::reduce() (comm/gpu/communicator.h) on the GPU.
void reduce_in_rank_order(const RankOrder& work, Stream& stream);

}  // namespace megatron::comm
