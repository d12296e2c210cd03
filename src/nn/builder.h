// Where modules get their parameters: each is made once, in the model's type, with its placement
// and its initial values' law.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/placement.h"

namespace megatron::nn {

class Builder {
 public:
  using PlacementOf =
      std::function<parallel::Placement(const std::string& name, const Shape& shape)>;
  // placement: maps a parameter's name and shape to canonical tensors; the model family's.
  Builder(Runtime& runtime, DType type, PlacementOf placement)
      : runtime_(runtime), type_(type), placement_(std::move(placement)) {}

  // A parameter with undefined value. Weight decay applies to those of two dims or more.
  Parameter& add(const std::string& name, Shape shape, parallel::Init init, int uses = 1);

  Runtime& runtime() const { return runtime_; }
  DType type() const { return type_; }
  std::vector<std::unique_ptr<parallel::Placed>> take() { return std::move(parameters_); }

 private:
  Runtime& runtime_;
  DType type_;
  PlacementOf placement_;
  std::vector<std::unique_ptr<parallel::Placed>> parameters_;
};

inline parallel::Init normal(double deviation) { return {parallel::Init::Kind::normal, deviation}; }
inline parallel::Init xavier_uniform() { return {parallel::Init::Kind::xavier_uniform, 0}; }
inline parallel::Init zeros() { return {parallel::Init::Kind::zeros, 0}; }
inline parallel::Init ones() { return {parallel::Init::Kind::ones, 0}; }

}  // namespace megatron::nn
