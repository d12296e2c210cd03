#include "nn/builder.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace megatron::nn {
namespace {

// A tensor with a shape and a type but no memory.
Tensor shape_only(const Shape& shape, DType type, const std::string& name) {
  const auto nowhere = Arena::make({DeviceKind::meta, 0}, MemoryClass::parameters);
  return Tensor::empty(*nowhere, shape, type, name);
}

}  // namespace

void Builder::place(parallel::ParameterSpec& placed, const std::string& name,
                    parallel::Placement whole, Shape shape, DType type, parallel::Init init,
                    Options options) const {
  placed.placement = std::move(whole);
  placed.whole = shape;
  placed.decay = shape.rank() >= 2;
  placed.divisions = std::move(options.divisions);
  std::set<parallel::RankGroup> dividing;
  for (parallel::Division& division : placed.divisions) {
    division.ranks = ranks_.size(division.group);
    division.rank = ranks_.rank(division.group);
    placed.placement = parallel::narrowed(placed.placement, division.axis, division.slices());
    // At most one division per axis.
    MG_ASSERT(shape[division.axis] == placed.whole[division.axis]);
    shape.set(division.axis, division.length(division.rank));
    dividing.insert(division.group);
  }
  const bool expert = dividing.contains(parallel::RankGroup::expert);
  MG_ASSERT(!dividing.contains(expert ? parallel::RankGroup::tensor
                                      : parallel::RankGroup::expert_tensor));
  const auto group = expert ? parallel::RankGroup::expert_tensor : parallel::RankGroup::tensor;
  if (!dividing.contains(group)) {
    placed.counted = ranks_.rank(group) == 0;
    if (options.partial.value_or(!expert && tensor().divides_tokens())) placed.partial = group;
  }
  placed.init = init;
  placed.parameter.name = name;
  placed.parameter.value = shape_only(shape, type, name);
}

Parameter& Builder::add(const std::string& name, parallel::Placement whole, Shape shape,
                        parallel::Init init, Options options) {
  auto placed = std::make_unique<parallel::ParameterSpec>();
  placed->parameter.uses.resize(static_cast<size_t>(options.uses));
  const DType type = options.type.value_or(type_);
  place(*placed, name, std::move(whole), shape, type, init, std::move(options));
  parameters_.push_back(std::move(placed));
  return parameters_.back()->parameter;
}

Parameter& Builder::add(const std::string& name, Shape shape, parallel::Init init,
                        Options options) {
  parallel::Placement whole = placement_(name, shape);
  const bool trained =
      adapters_ == nullptr ||
      std::ranges::all_of(whole.tensors, adapters_->trains, &parallel::CanonicalTensor::name);
  Parameter& parameter = add(name, std::move(whole), std::move(shape), init, std::move(options));
  parameter.trainable = trained;
  return parameter;
}

ModuleState& Builder::add_state(const std::string& name, Shape shape, parallel::Init init,
                                StateOptions options) {
  auto state = std::make_unique<ModuleState>();
  place(state->placed, name, placement_(name, shape), shape, kernels::accumulator(type_), init,
        {.divisions = std::move(options.divisions)});
  state->placed.parameter.trainable = false;
  state->observed_shape = options.observed.value_or(state->value().shape());
  state->reduce = options.reduce;
  state->update = std::move(options.update);
  states_.push_back(std::move(state));
  return *states_.back();
}

StepSum& Builder::add_step_sum(Shape shape, DType type) {
  step_sums_.push_back(std::make_unique<StepSum>(StepSum{std::move(shape), type, {}}));
  return *step_sums_.back();
}

}  // namespace megatron::nn
