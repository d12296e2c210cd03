// Update rule of one parameter in a step: AdamW, SGD, Lion or Muon.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/together.h"
#include "parallel/placement.h"

namespace megatron::optim {

struct OptimizerConfig;

// Scalars of a step in the form that kernels take, 0-d f64.
struct StepScalars {
  Tensor weight_decay;
  Tensor step;   // counts from 1
  Tensor scale;  // unscales and clips the gradients
};

// A parameter, or a shard of it, as a rule sees it.
struct Target {
  const parallel::ParameterSpec* placed = nullptr;
  int64_t begin = 0;  // first element of the shard
  Tensor gradient;
  kernels::MasterWeight weight;
  Tensor learning_rate;        // 0-d f64
  std::vector<Tensor> states;  // in the order of Rule::states()
};

class Rule {
 public:
  struct State {
    std::string_view name;
    DType type;
  };
  virtual ~Rule() = default;

  // State of each parameter whose gradient is of type `wide`: tensors of the parameter's shape,
  // zero before the first step.
  virtual std::vector<State> states(DType wide) const = 0;
  // Factor on a parameter's learning rate for a model in muP (Yang et al. 2022, table 8).
  virtual double rate_multiplier(const parallel::ParameterSpec& placed) const {
    static_cast<void>(placed);
    return 1;
  }
  virtual void update(const Target& target, const StepScalars& step, Stream& stream) = 0;
  // The updates of many parameters, set up once for all steps. Null: each is several calls.
  virtual std::unique_ptr<kernels::Together> together(std::span<const Target> targets,
                                                      const StepScalars& step, Runtime& runtime) {
    static_cast<void>(targets), static_cast<void>(step), static_cast<void>(runtime);
    return nullptr;
  }
  // Computes the matrix products of update(), which depend only on the gradient, and drops the
  // results: nothing changes. Collective if update() is.
  virtual void rehearse(const Target& target, Stream& stream) {
    static_cast<void>(target);
    static_cast<void>(stream);
  }
};

std::unique_ptr<Rule> make_adam(const OptimizerConfig& config);
std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config);
std::unique_ptr<Rule> make_lion(const OptimizerConfig& config);

}  // namespace megatron::optim
