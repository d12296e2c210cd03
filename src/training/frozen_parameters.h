// --freeze, and adapters: the parameters and module states of a model that training does not
// change.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "models/stage.h"
#include "parallel/layer_layout.h"

namespace megatron::training {

class FrozenParameters {
 public:
  FrozenParameters() = default;  // none
  // True if a model with these patterns has frozen parameters.
  static bool any(const models::Model& model, std::span<const std::string> patterns) {
    return model->adapter() != nullptr || !patterns.empty();
  }
  // In a model with an adapter, every parameter that the adapter does not train is frozen as well.
  // patterns: shell patterns (fnmatch: *, ?, [...]) of whole names of tensors in checkpoints:
  // "model.layers.[0-3].*". Throws Error if one fits no name, if they divide the tensors of one
  // parameter (query, key and value are one matrix here), or if nothing is left to train.
  FrozenParameters(const models::Model& model, std::span<const std::string> patterns);

  // Numbers of elements.
  int64_t trained() const { return all_ - frozen_; }
  int64_t all() const { return all_; }
  // "1.2M of 3.4M parameters are trained"
  std::string text() const;
  bool operator==(const FrozenParameters& other) const { return names_ == other.names_; }

  // Makes the frozen tensors of a stage, which have no memory yet, keep their values.
  void apply(const models::Stage& stage) const;
  // First virtual stage with a trainable parameter.
  int first_trained(const models::Model& model, const parallel::PipelineShape& shape,
                    const parallel::LayerPlacement& placement) const;

 private:
  bool contains(const parallel::ParameterSpec& placed) const {
    return names_.contains(placed.parameter.name);
  }

  std::set<std::string> names_;  // Parameter::name
  int64_t all_ = 0, frozen_ = 0;
};

}  // namespace megatron::training
