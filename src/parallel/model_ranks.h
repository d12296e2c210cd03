// The groups of ranks that share the modules of a model.
#pragma once

#include <vector>

#include "parallel/context_attention.h"
#include "parallel/expert_tokens.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

// Groups are borrowed; null: one rank.
struct ModelRanks {
  TensorParallel tensor;                 // slices of the matrices of dense layers
  comm::Group* context = nullptr;        // each holds some tokens of each sequence
  comm::Group* context_async = nullptr;  // the same ranks, for calls that overlap with compute
  // Its levels (ContextParallel), if sizes of them are given.
  comm::Group *context_inner = nullptr, *context_ring = nullptr, *context_ring_async = nullptr;
  // Exchange of tokens among context ranks in attention: one per layer, or one for all layers;
  // empty: p2p.
  std::vector<ContextExchange> context_exchange;
  comm::Group* expert = nullptr;         // each holds some of the experts
  comm::Group* expert_tensor = nullptr;  // slices of each expert's matrices
  comm::Group* experts = nullptr;        // ranks of both groups, which together hold all experts
  comm::Group* experts_async = nullptr;  // the same, for calls that overlap with compute
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  bool expert_stops = false;        // forward passes may stop at their calls
  double planned_expert_load = 0;   // ExpertRanks::planned_load
  comm::Group* replicas = nullptr;  // have other tokens of the same step

  ContextParallel context_parallel(int64_t layer) const {
    ContextParallel of{.group = context,
                       .async = context_async,
                       .inner = context_inner,
                       .ring = context_ring,
                       .ring_async = context_ring_async};
    if (context_exchange.size() == 1) of.exchange = context_exchange[0];
    if (context_exchange.size() > 1) of.exchange = context_exchange.at(static_cast<size_t>(layer));
    return of;
  }
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
