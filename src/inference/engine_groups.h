// Ranks that divide a model for inference by tensor, expert and pipeline parallelism.
#pragma once

#include <memory>

#include "inference/engine_ranks.h"
#include "models/stage.h"
#include "parallel/ranks.h"

namespace megatron::inference {

struct EngineLayout {
  int tensor = 1, stages = 1;
  // Number of parts of the tensor-parallel ranks, each with its own experts; the ranks of a part
  // hold slices of them. Divides `tensor`.
  int experts = 1;

  int ranks() const { return tensor * stages; }
};

class EngineGroups {
 public:
  // Collective over `world`, which outlives this object and has layout.ranks() ranks. Rank 0 holds
  // the output layer and samples: stages are in descending order of ranks, so that tokens are
  // sampled on the rank that receives requests.
  EngineGroups(const EngineLayout& layout, comm::Group& world);

  // Returns this rank's part of the model, allocated but not filled; part(): without memory. Throws
  // Error naming the flags if layers, heads, experts or vocabulary cannot be distributed.
  std::unique_ptr<models::Stage> build(const models::Model& model, Runtime& runtime, DType type,
                                       uint64_t seed) const;
  std::unique_ptr<models::Stage> part(const models::Model& model, Runtime& runtime, DType type,
                                      uint64_t seed) const;
  EngineRanks ranks(bool led) const;

 private:
  const EngineLayout layout_;
  const std::unique_ptr<comm::Group> grid_;  // the world in the order of pipeline stages
  const parallel::Ranks ranks_;
  const std::unique_ptr<Runtime> host_;
};

}  // namespace megatron::inference
