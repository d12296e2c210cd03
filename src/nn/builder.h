// Where modules get their parameters: each is made once, in the model's type, with its placement
// and its initial values' law, and divided among the ranks that share the module.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/module_state.h"
#include "parallel/tensor_parallel.h"

namespace megatron::nn {

class Builder {
 public:
  using PlacementOf =
      std::function<parallel::Placement(const std::string& name, const Shape& shape)>;
  // placement: maps a parameter's name and whole shape to canonical tensors; the model family's.
  Builder(Runtime& runtime, DType type, PlacementOf placement,
          const parallel::TensorParallel& tensor = {})
      : runtime_(runtime), type_(type), placement_(std::move(placement)), tensor_(tensor) {}

  // A parameter whose value has a shape and a type but no memory yet (parallel::allocate,
  // parallel::DataParallel). shape: of all ranks' slices together. Weight decay applies to those of
  // two dims or more. One that is not divided lies on every rank, and where tokens are divided its
  // gradient there is a part of the sum. type: other than the model's.
  Parameter& add(const std::string& name, Shape shape, parallel::Init init, int uses = 1,
                 std::optional<parallel::Division> division = std::nullopt,
                 std::optional<DType> type = std::nullopt);

  struct StateOptions {
    // Of what this rank observes; default: as the value is. observed, update: ModuleState.
    std::optional<Shape> observed;
    comm::Reduce reduce = comm::Reduce::sum;
    std::function<void(const ModuleState&, Stream&)> update;
    std::optional<parallel::Division> division;
  };
  // A state in f32 (f64 for f64), placed and divided as a parameter is.
  ModuleState& add_state(const std::string& name, Shape shape, parallel::Init init,
                         StateOptions options);

  Runtime& runtime() const { return runtime_; }
  DType type() const { return type_; }
  const parallel::TensorParallel& tensor() const { return tensor_; }
  std::vector<std::unique_ptr<parallel::ParameterSpec>> take() { return std::move(parameters_); }
  std::vector<std::unique_ptr<ModuleState>> take_states() { return std::move(states_); }

 private:
  void place(parallel::ParameterSpec& placed, const std::string& name, Shape shape, DType type,
             parallel::Init init, std::optional<parallel::Division> division) const;

  Runtime& runtime_;
  DType type_;
  PlacementOf placement_;
  parallel::TensorParallel tensor_;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> parameters_;
  std::vector<std::unique_ptr<ModuleState>> states_;
};

inline parallel::Init normal(double standard_deviation) {
  return {parallel::Init::Kind::normal, standard_deviation};
}
inline parallel::Init xavier_uniform() { return {parallel::Init::Kind::xavier_uniform, 0}; }
inline parallel::Init zeros() { return {parallel::Init::Kind::zeros, 0}; }
inline parallel::Init ones() { return {parallel::Init::Kind::ones, 0}; }

}  // namespace megatron::nn
