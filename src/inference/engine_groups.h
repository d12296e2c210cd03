// Ranks that divide a model for inference by tensor and pipeline parallelism.
#pragma once

#include <memory>

#include "inference/engine_ranks.h"
#include "models/stage.h"
#include "parallel/ranks.h"

namespace megatron::inference {

class EngineGroups {
 public:
  // Collective over `world`, which outlives this and has tensor * stages ranks. Its rank 0 has the output layer and
  // draws: stages are in descending order of ranks, so that what is drawn is where requests come from.
  EngineGroups(int tensor, int stages, comm::Group& world);

  // This rank's part of the model, allocated, not filled. Throws Error naming the flags when its layers, heads or
  // vocabulary cannot be given out.
  std::unique_ptr<models::Stage> build(const models::Model& model, Runtime& runtime, DType type,
                                       uint64_t seed) const;
  EngineRanks ranks(bool led) const;

 private:
  const std::unique_ptr<comm::Group> grid_;  // the world in the order of the stages
  const parallel::Ranks ranks_;
  const std::unique_ptr<Runtime> host_;
};

}  // namespace megatron::inference
