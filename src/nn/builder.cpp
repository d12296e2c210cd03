#include "nn/builder.h"

namespace megatron::nn {
namespace {

// A shape and a type without memory.
Tensor shape_only(const Shape& shape, DType type, const std::string& name) {
  const auto nowhere = Arena::make({DeviceKind::meta, 0}, MemoryClass::parameters);
  return Tensor::empty(*nowhere, shape, type, name);
}

}  // namespace

void Builder::place(parallel::ParameterSpec& placed, const std::string& name, Shape shape,
                    DType type, parallel::Init init,
                    std::optional<parallel::Division> division) const {
  placed.placement = placement_(name, shape);
  placed.whole = shape;
  placed.decay = shape.rank() >= 2;
  if (division) {
    const std::vector<parallel::Slice> slices =
        parallel::slices_of(*division, tensor_.size(), tensor_.rank());
    placed.placement = parallel::narrowed(placed.placement, division->axis, slices);
    int64_t held = 0;
    for (const parallel::Slice& slice : slices) held += slice.size;
    shape.set(division->axis, held);
  }
  placed.partial = !division && tensor_.divides_tokens();
  placed.counted = division || tensor_.rank() == 0;
  placed.division = std::move(division);
  placed.init = init;
  placed.parameter.name = name;
  placed.parameter.value = shape_only(shape, type, name);
}

Parameter& Builder::add(const std::string& name, Shape shape, parallel::Init init, int uses,
                        std::optional<parallel::Division> division, std::optional<DType> type) {
  auto placed = std::make_unique<parallel::ParameterSpec>();
  place(*placed, name, shape, type.value_or(type_), init, std::move(division));
  placed->parameter.uses.resize(static_cast<size_t>(uses));
  parameters_.push_back(std::move(placed));
  return parameters_.back()->parameter;
}

ModuleState& Builder::add_state(const std::string& name, Shape shape, parallel::Init init,
                                StateOptions options) {
  auto state = std::make_unique<ModuleState>();
  place(state->placed, name, shape, kernels::accumulator(type_), init, std::move(options.division));
  state->placed.parameter.trainable = false;
  state->observed_shape = options.observed.value_or(state->value().shape());
  state->reduce = options.reduce;
  state->update = std::move(options.update);
  states_.push_back(std::move(state));
  return *states_.back();
}

}  // namespace megatron::nn
