// The groups of ranks that share the modules of a model.
#pragma once

#include "parallel/expert_tokens.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// Groups are borrowed; null: one rank.
struct ModelRanks {
  TensorParallel tensor;                 // ranks that hold slices of dense layers' matrices
  comm::Group* context = nullptr;        // ranks that hold slices of each sequence
  comm::Group* expert = nullptr;         // ranks that hold different experts
  comm::Group* expert_tensor = nullptr;  // ranks that hold slices of each expert's matrices
  comm::Group* experts = nullptr;  // ranks that hold all experts together: both groups combined
  comm::Group* experts_async = nullptr;  // the same ranks, for calls that overlap with compute
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  bool expert_stops = false;       // forward passes may pause at their calls
  double planned_expert_load = 0;  // ExpertRanks::planned_load
  comm::Group* data = nullptr;     // ranks that see other tokens of the same step

  comm::Group* group(RankGroup which) const {
    switch (which) {
      case RankGroup::tensor: return tensor.group;
      case RankGroup::context: return context;
      case RankGroup::expert: return expert;
      case RankGroup::expert_tensor: return expert_tensor;
    }
    return nullptr;
  }
  ExpertRanks expert_ranks() const {
    return {.group = experts,
            .own_tokens = tensor.size() == 1 || tensor.divides_tokens(),
            .async = experts_async,
            .stops = expert_stops,
            .dispatcher = dispatcher,
            .width = size(RankGroup::expert_tensor),
            .planned_load = planned_expert_load};
  }
  int size(RankGroup which) const { return group(which) == nullptr ? 1 : group(which)->size(); }
  int rank(RankGroup which) const { return group(which) == nullptr ? 0 : group(which)->rank(); }
};

}  // namespace megatron::parallel
