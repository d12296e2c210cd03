// The optimizer step: gradient norm, clipping and update of every parameter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/placement.h"

namespace megatron::optim {

enum class Method { adam, sgd };

struct OptimizerConfig {
  Method method = Method::adam;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;  // 0: no clipping

  void check() const;  // throws Error naming the flag
};

// What one update needs of the run.
struct StepInputs {
  double learning_rate = 0, weight_decay = 0;
};

class Optimizer {
 public:
  // Reads the gradients from use 0 of each parameter. State is allocated and zero; a bf16
  // parameter's master weight begins as its value. The parameters outlive the optimizer.
  Optimizer(std::vector<parallel::Placed*> parameters, const OptimizerConfig& config,
            Runtime& runtime);

  // Finds the norm of the gradients and the factor that divides and clips them. divisor: of the raw gradients,
  // the number of tokens of the step. Nothing else changes, so that a step can be left out after it.
  void find_norm(double divisor);
  // L2 norm of all gradients before clipping, of find_norm(). 0-d f64.
  const Tensor& gradient_norm() const { return norm_; }
  // Updates every parameter; after find_norm().
  void update(const StepInputs& inputs);

  // All that must be kept, beside the parameters, for the next step to be the same: "exp_avg",
  // "exp_avg_sq", "momentum_buffer", and "remainder" (what a bf16 parameter lacks of its master
  // weight); of the shape of their parameter.
  struct State {
    std::string name;
    const parallel::Placed* placed = nullptr;
    Tensor value;
  };
  std::vector<State> states() const;
  Tensor state(const parallel::Placed& placed, std::string_view name) const;  // undefined: none
  int64_t steps() const { return steps_; }                                    // updates done
  void resume(int64_t steps);  // after the states were filled

 private:
  struct Entry {
    parallel::Placed* placed;
    Tensor remainder, first, second;  // first: exp_avg or momentum_buffer
  };
  void set_scalar(Tensor& scalar, double value);

  OptimizerConfig config_;
  Runtime& runtime_;
  std::vector<Entry> entries_;
  Tensor partials_;  // f64: sums of squares of fixed blocks, in canonical order
  Tensor norm_, scale_, divisor_, learning_rate_, weight_decay_, step_;
  int64_t steps_ = 0;
};

}  // namespace megatron::optim
