// The part of a model that one rank of a run holds.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/stage.h"
#include "parallel/layer_layout.h"
#include "parallel/ranks.h"

namespace megatron::training {

// One chunk per chunk of ranks.pipeline(), with parameters without memory. Throws Error naming the
// flags if the layers or heads cannot be distributed. seed: for dropout.
class ModelParts {
 public:
  ModelParts(const models::Model& model, const parallel::Ranks& ranks,
             const parallel::LayerPlacement& placement, Runtime& runtime, DType type,
             uint64_t seed);

  std::span<models::Stage* const> chunks() const { return chunks_; }
  const models::Stage& chunk(size_t index) const { return *chunks_[index]; }
  // The whole model; only valid if this rank holds all of it.
  const models::Stage& whole() const;
  std::vector<parallel::ParameterSpec*> parameters() const;  // of all chunks

 private:
  std::vector<std::unique_ptr<models::Stage>> owned_;
  std::vector<models::Stage*> chunks_;
};

}  // namespace megatron::training
