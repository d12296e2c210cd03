// Ranks that divide a model for inference by tensor, expert and pipeline parallelism.
#pragma once

#include <memory>

#include "inference/engine_ranks.h"
#include "models/stage.h"
#include "parallel/ranks.h"

namespace megatron::inference {

struct EngineLayout {
  int tensor = 1, stages = 1;
  // Parts of the tensor-parallel ranks, each with experts of its own; the ranks of a part have slices of these. Divides
  // `tensor`.
  int experts = 1;

  int ranks() const { return tensor * stages; }
};

class EngineGroups {
 public:
  // Collective over `world`, which outlives this and has layout.ranks() ranks. Its rank 0 has the output layer and
  // draws: stages are in descending order of ranks, so that what is drawn is where requests come from.
  EngineGroups(const EngineLayout& layout, comm::Group& world);

  // This rank's part of the model, allocated, not filled. Throws Error naming the flags when its layers, heads,
  // experts or vocabulary cannot be given out.
  std::unique_ptr<models::Stage> build(const models::Model& model, Runtime& runtime, DType type,
                                       uint64_t seed) const;
  EngineRanks ranks(bool led) const;

 private:
  const EngineLayout layout_;
  const std::unique_ptr<comm::Group> grid_;  // the world in the order of the stages
  const parallel::Ranks ranks_;
  const std::unique_ptr<Runtime> host_;
};

}  // namespace megatron::inference
