#include "nn/builder.h"

namespace megatron::nn {

Parameter& Builder::add(const std::string& name, Shape shape, parallel::Init init, int uses) {
  auto placed = std::make_unique<parallel::Placed>();
  placed->parameter.name = name;
  placed->parameter.value =
      Tensor::empty(runtime_.arena(MemoryClass::parameters), shape, type_, name);
  placed->parameter.uses.resize(static_cast<size_t>(uses));
  placed->placement = placement_(name, shape);
  placed->init = init;
  placed->decay = shape.rank() >= 2;
  parameters_.push_back(std::move(placed));
  return parameters_.back()->parameter;
}

}  // namespace megatron::nn
