// The groups of one rank of a run, and what each room needs of them.
#pragma once

#include <memory>
#include <vector>

#include "parallel/data_parallel.h"
#include "parallel/mesh.h"
#include "parallel/schedule.h"
#include "parallel/tensor_parallel.h"

namespace megatron::parallel {

struct RanksOptions {
  Layout layout;
  bool sequence = false;   // of tensor parallelism
  PipelineShape pipeline;  // its stages are layout.pp
  Sharding sharding = Sharding::none;
  bool beside = false;  // make the groups for calls beside the compute
};

class Ranks {
 public:
  // Collective over `world`, which outlives this. Throws Error as Mesh::build does.
  Ranks(const RanksOptions& options, comm::Group& world);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const Mesh& mesh() const { return mesh_; }
  comm::Group& world() const { return mesh_.world(); }
  comm::Group& data() const { return mesh_.group({Axis::dp, Axis::cp}); }   // see different samples
  comm::Group& model() const { return mesh_.group({Axis::tp, Axis::pp}); }  // hold one replica
  const PipelineShape& pipeline() const { return options_.pipeline; }
  int stage() const { return mesh_.coordinate(Axis::pp); }
  bool holds(int piece) const { return options_.pipeline.stage_of(piece) == stage(); }
  bool first() const { return holds(0); }                              // has the embedding
  bool last() const { return holds(options_.pipeline.pieces() - 1); }  // has the loss

  TensorParallel tensor() const;
  DataParallelGroups data_parallel() const;
  comm::Group* stages() const;         // null: one
  comm::Group* stages_beside() const;  // null: none
  // Ranks that together hold each element of the model once (optim/optimizer.h): of a replica, or
  // of one instance of the shards. Null: one.
  comm::Group* norm() const;

  // That this rank has spent in calls of all these groups so far, as comm::Group::seconds().
  double seconds() const;

 private:
  RanksOptions options_;
  Mesh mesh_;
  std::unique_ptr<comm::Group> shards_, instances_, embedding_, norm_;
  std::unique_ptr<comm::Group> tensor_beside_, shards_beside_, instances_beside_, stages_beside_;
};

}  // namespace megatron::parallel
