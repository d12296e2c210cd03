// The groups of one rank of a run, and the groups that each room needs.
#pragma once

#include <memory>
#include <vector>

#include "parallel/data_parallel.h"
#include "parallel/mesh.h"
#include "parallel/model_ranks.h"
#include "parallel/schedule.h"
#include "parallel/token_layout.h"

namespace megatron::parallel {

struct RanksOptions {
  Layout layout;
  bool sequence = false;   // sequence parallelism of the tensor-parallel ranks
  PipelineShape pipeline;  // has layout.pp stages
  Sharding sharding = Sharding::none;
  bool async = false;          // creates the groups for calls that overlap with compute
  bool async_experts = false;  // including the one that sends tokens to experts
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  std::vector<ContextExchange> context_exchange;  // ModelRanks
  double planned_expert_load = 0;                 // ExpertRanks::planned_load
  bool cut_by_document = true;                    // TokenLayout::by_document
};

class Ranks {
 public:
  // Collective over `world`, which must outlive this. Throws Error as Mesh::build does.
  Ranks(const RanksOptions& options, comm::Group& world);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const Mesh& mesh() const { return mesh_; }
  comm::Group& world() const { return mesh_.world(); }
  // Ranks that have different samples.
  comm::Group& samples() const { return mesh_.group(Axis::dp); }
  // Ranks whose gradients and counts are added: those with different samples, or with different
  // tokens of the same ones.
  comm::Group& replicas() const { return mesh_.group({Axis::dp, Axis::cp}); }
  // This rank's tokens of a micro-batch. Throws Error if they cannot be divided.
  TokenLayout tokens(int64_t sequences, int64_t length) const {
    TokenLayout layout{sequences, length, mesh_.coordinate(Axis::cp), mesh_.size(Axis::cp)};
    if (has_context_levels()) layout.inner = mesh_.context_level(0).size();
    layout.by_document = options_.cut_by_document;
    layout.check();
    return layout;
  }
  // Ranks that hold the same experts.
  comm::Group& expert_data() const { return mesh_.expert_group(Axis::dp); }
  // Ranks that hold one replica.
  comm::Group& model() const { return mesh_.group({Axis::tp, Axis::pp}); }
  const PipelineShape& pipeline() const { return options_.pipeline; }
  int stage() const { return mesh_.coordinate(Axis::pp); }
  bool holds(int virtual_stage) const {
    return options_.pipeline.stage_of(virtual_stage) == stage();
  }
  bool first() const { return holds(0); }  // true if it has the embedding
  // True if it has the loss.
  bool last() const { return holds(options_.pipeline.virtual_stages() - 1); }

  ModelRanks modules() const;  // ranks that share the model's modules
  TensorParallel tensor() const { return modules().tensor; }
  DataParallelGroups data_parallel() const;
  comm::Group* stages() const;        // null with a single stage
  comm::Group* stages_async() const;  // null if not created
  // Ranks among which shards that are `counted` hold each element of the model once
  // (optim/optimizer.h): those of a replica, of one instance of the shards, or all. Null: one.
  comm::Group* norm() const;

  // Seconds that this rank has spent in calls of all these groups so far, as
  // comm::Group::seconds().
  double seconds() const;

 private:
  // Replica groups that the mesh does not provide.
  struct OwnReplicas {
    std::unique_ptr<comm::Group> shards, instances, async, instances_async;
  };
  bool has_experts() const;  // true if experts have other replicas than dense layers
  // Levels of context-parallel ranks: neighbours, and a ring.
  bool has_context_levels() const { return options_.layout.hierarchical_cp.size() == 2; }
  OwnReplicas make_replicas(comm::Group& replicas) const;
  Replicas replicas(comm::Group& all, const OwnReplicas& own) const;

  RanksOptions options_;
  Mesh mesh_;
  OwnReplicas dense_, expert_;
  std::unique_ptr<comm::Group> norm_, tensor_async_, stages_async_, experts_async_, context_async_,
      context_ring_async_;
};

}  // namespace megatron::parallel
