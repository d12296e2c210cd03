#include "nn/builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/philox.h"

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

parallel::ParameterSpec* Builder::find(const std::string& name) const {
  const auto found = std::ranges::find(
      parameters_, name, [](const auto& placed) -> const auto& { return placed->parameter.name; });
  return found == parameters_.end() ? nullptr : found->get();
}

Weight Builder::add(const std::string& name, parallel::Placement whole, Shape shape,
                    parallel::Init init, Options options) {
  if (parallel::ParameterSpec* there = shared_ == nullptr ? nullptr : find(name)) {
    MG_ASSERT(there->whole == shape && options.uses == 1);
    Parameter& parameter = there->parameter;
    parameter.uses.emplace_back();
    used_.push_back(&parameter);
    return {parameter, static_cast<int>(parameter.uses.size()) - 1};
  }
  auto placed = std::make_unique<parallel::ParameterSpec>();
  Parameter& parameter = placed->parameter;
  parameter.uses.resize(static_cast<size_t>(options.uses));
  const DType type = options.type.value_or(type_);
  place(*placed, name, std::move(whole), shape, type, init, std::move(options));
  if (shared_ != nullptr) {
    placed->used_in = shared_->layers;
    placed->first_use = static_cast<int>(shared_->use);
  }
  parameters_.push_back(std::move(placed));
  used_.push_back(&parameter);
  return parameter;
}

Weight Builder::add(const std::string& name, Shape shape, parallel::Init init, Options options) {
  parallel::Placement whole = placement_(name, shape);
  const bool trained =
      adapters_ == nullptr ||
      std::ranges::all_of(whole.tensors, adapters_->trains, &parallel::CanonicalTensor::name);
  const Weight weight = add(name, std::move(whole), std::move(shape), init, std::move(options));
  weight.parameter->trainable = trained;
  return weight;
}

ModuleState& Builder::add_state(const std::string& name, Shape shape, parallel::Init init,
                                StateOptions options) {
  auto state = std::make_unique<ModuleState>();
  if (options.of_training) {
    place(state->placed, name, {.tensors = {{.name = name, .global = shape}}}, shape, DType::f32,
          init, {.partial = tensor().size() > 1});
  } else {
    place(state->placed, name, placement_(name, shape), shape, kernels::accumulator(type_), init,
          {.divisions = std::move(options.divisions)});
  }
  state->of_training = options.of_training;
  state->placed.parameter.trainable = false;
  state->observed_shape = options.observed.value_or(state->value().shape());
  state->reduce = options.reduce;
  state->update = std::move(options.update);
  states_.push_back(std::move(state));
  return *states_.back();
}

uint64_t Builder::random_stream(const std::string& name, std::string_view kind) const {
  const size_t use = shared_ == nullptr ? 0 : shared_->use;
  return hash_name(use == 0 ? fmt::format("{}{}", name, kind)
                            : fmt::format("{}.{}{}", name, use, kind));
}

StepSum& Builder::add_step_sum(Shape shape, DType type) {
  step_sums_.push_back(std::make_unique<StepSum>(StepSum{std::move(shape), type, {}}));
  return *step_sums_.back();
}

}  // namespace megatron::nn
