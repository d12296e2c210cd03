// The optimizer step: gradient norm, clipping and update of every parameter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "optim/muon.h"
#include "optim/rule.h"

namespace megatron::optim {

enum class Method { adam, sgd, lion, muon };
std::string_view name(Method method);  // "adam"

struct OptimizerConfig {
  Method method = Method::adam;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  DType exp_avg_type = DType::f32, exp_avg_sq_type = DType::f32;  // Adam's moments: or bf16
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.95, lion_beta2 = 0.98;
  MuonConfig muon;
  Method muon_scalar = Method::adam;  // of what Muon does not take: adam or lion
  double clip_grad = 1.0;             // 0: no clipping

  // Whether a rule is at work in this method: Muon's second one, too.
  bool uses(Method rule) const {
    return method == rule || (method == Method::muon && muon_scalar == rule);
  }
  void check() const;  // throws Error naming the flag
};

// What one update needs of the run.
struct StepInputs {
  double learning_rate = 0, weight_decay = 0;
  std::optional<double>
      decoupled_learning_rate;  // of embedding and output layer; default: the same
};

class Optimizer {
 public:
  // Reads the gradients from use 0 of each parameter. State is allocated and zero; the
  // master weight of a bf16 or f16 parameter begins as its value. The parameters outlive the
  // optimizer.
  Optimizer(std::vector<parallel::Placed*> parameters, const OptimizerConfig& config,
            Runtime& runtime);

  // Finds the norm of the gradients and the factor that divides and clips them. divisor: of the raw
  // gradients, the number of tokens of the step. Nothing else changes, so that a step can be left
  // out after it.
  void find_norm(double divisor);
  // L2 norm of all gradients before clipping, of find_norm(). 0-d f64.
  const Tensor& gradient_norm() const { return norm_; }
  // Updates every parameter; after find_norm().
  void update(const StepInputs& inputs);

  // All that must be kept, beside the parameters, for the next step to be the same: "remainder"
  // (what a bf16 parameter lacks of its master weight) or "master" (an f16 parameter's, in f32),
  // and what its rule keeps: "exp_avg", "exp_avg_sq", "momentum_buffer"; of the shape of their
  // parameter.
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
    Target target;
    Rule* rule = nullptr;
    Tensor master;  // of an f16 parameter
  };
  Entry make_entry(parallel::Placed& placed);
  Tensor zeros(const Shape& shape, DType type, const std::string& label);
  void set_scalar(Tensor& scalar, double value);

  OptimizerConfig config_;
  Runtime& runtime_;
  std::unique_ptr<Rule> rule_, muon_;  // muon_: of the parameters that it takes
  std::vector<Entry> entries_;
  Tensor partials_;  // f64: sums of squares of fixed blocks, in canonical order
  Tensor norm_, divisor_, learning_rate_, decoupled_rate_;
  StepScalars scalars_;
  int64_t steps_ = 0;
};

}  // namespace megatron::optim
