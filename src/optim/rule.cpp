#include "optim/rule.h"

#include "kernels/table.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

// If updates do not depend on the magnitude of the gradients, the learning rate of a matrix between
// embedding and output falls with the width, and so does the epsilon added to that magnitude.
double per_width(const parallel::ParameterSpec& placed) {
  return placed.grows_both_ways ? 1 / placed.width_multiplier : 1;
}

// A rule whose update is a single kernel call.
template <auto entry, class Args>
class OneCall : public Rule {
 public:
  explicit OneCall(const OptimizerConfig& c) : c_(c) {}

  double rate_multiplier(const parallel::ParameterSpec& placed) const override {
    return per_width(placed);
  }
  void update(const Target& target, const StepScalars& step, Stream& stream) final {
    (kernels::table(stream).*entry)(call(target, step), stream);
  }
  std::unique_ptr<kernels::Together> together(std::span<const Target> targets,
                                              const StepScalars& step, Runtime& runtime) final {
    std::vector<Args> calls;
    for (const Target& target : targets) calls.push_back(call(target, step));
    return kernels::together(std::move(calls), runtime.arena(MemoryClass::optimizer),
                             runtime.stream());
  }

 protected:
  virtual Args call(const Target& target, const StepScalars& step) const = 0;

  const OptimizerConfig c_;
};

class Adam final : public OneCall<&kernels::Table::adam, kernels::AdamArgs> {
 public:
  using OneCall::OneCall;
  std::vector<State> states(DType wide) const override {
    const auto type = [wide](DType chosen) { return chosen == DType::f32 ? wide : chosen; };
    return {{"exp_avg", type(c_.exp_avg_type)}, {"exp_avg_sq", type(c_.exp_avg_sq_type)}};
  }

 private:
  kernels::AdamArgs call(const Target& t, const StepScalars& step) const override {
    return {.parameter = t.weight,
            .grad = t.gradient,
            .exp_avg = t.states[0],
            .exp_avg_sq = t.states[1],
            .lr = t.learning_rate,
            .weight_decay = step.weight_decay,
            .step = step.step,
            .scale = step.scale,
            .beta1 = c_.adam_beta1,
            .beta2 = c_.adam_beta2,
            .eps = c_.adam_eps * per_width(*t.placed),
            .decay = t.placed->decay};
  }
};

class Sgd final : public OneCall<&kernels::Table::sgd, kernels::SgdArgs> {
 public:
  using OneCall::OneCall;
  std::vector<State> states(DType wide) const override {
    if (c_.sgd_momentum == 0) return {};
    return {{"momentum_buffer", wide}};
  }
  // The gradients of those matrices grow less with the width than those of vectors and embeddings.
  double rate_multiplier(const parallel::ParameterSpec& placed) const override {
    return placed.grows_both_ways ? 1 : placed.width_multiplier;
  }

 private:
  kernels::SgdArgs call(const Target& t, const StepScalars& step) const override {
    return {.parameter = t.weight,
            .grad = t.gradient,
            .buffer = t.states.empty() ? Tensor() : t.states[0],
            .lr = t.learning_rate,
            .weight_decay = step.weight_decay,
            .step = step.step,
            .scale = step.scale,
            .momentum = c_.sgd_momentum,
            .decay = t.placed->decay};
  }
};

class Lion final : public OneCall<&kernels::Table::lion, kernels::LionArgs> {
 public:
  using OneCall::OneCall;
  std::vector<State> states(DType wide) const override { return {{"exp_avg", wide}}; }

 private:
  kernels::LionArgs call(const Target& t, const StepScalars& step) const override {
    return {.parameter = t.weight,
            .grad = t.gradient,
            .exp_avg = t.states[0],
            .lr = t.learning_rate,
            .weight_decay = step.weight_decay,
            .scale = step.scale,
            .beta1 = c_.lion_beta1,
            .beta2 = c_.lion_beta2,
            .decay = t.placed->decay};
  }
};

}  // namespace

std::unique_ptr<Rule> make_adam(const OptimizerConfig& config) {
  return std::make_unique<Adam>(config);
}
std::unique_ptr<Rule> make_sgd(const OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}
std::unique_ptr<Rule> make_lion(const OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

}  // namespace megatron::optim
