#include "optim/optimizer.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::optim {
namespace {

// The rows of a part's slice within its parameter's gradient, as one flat tensor.
Tensor part_rows(const Tensor& gradient, const parallel::Slice& slice) {
  const int64_t row = gradient.elements() / std::max<int64_t>(gradient.size(0), 1);
  return gradient.view({gradient.elements()}).slice(0, slice.local_begin * row, slice.size * row);
}

int64_t blocks_of(int64_t elements) {
  return (elements + kernels::kNormBlock - 1) / kernels::kNormBlock;
}

int64_t norm_blocks(const parallel::Placed& placed) {
  const Tensor& value = placed.parameter.value;
  const int64_t row = value.elements() / std::max<int64_t>(value.size(0), 1);
  int64_t blocks = 0;
  for (const parallel::Part& part : placed.placement.parts)
    for (const parallel::Slice& slice : part.slices) blocks += blocks_of(slice.size * row);
  return blocks;
}

std::unique_ptr<Rule> make_rule(Method method, const OptimizerConfig& config) {
  switch (method) {
    case Method::sgd: return make_sgd(config);
    case Method::lion: return make_lion(config);
    default: return make_adam(config);
  }
}

}  // namespace

std::string_view name(Method method) {
  switch (method) {
    case Method::adam: return "adam";
    case Method::sgd: return "sgd";
    case Method::lion: return "lion";
    case Method::muon: return "muon";
  }
  return "";
}

void OptimizerConfig::check() const {
  const auto unit = [](double value, std::string_view flag) {
    MG_CHECK(value >= 0 && value < 1, "--{} is {}; it must lie in [0, 1)", flag, value);
  };
  unit(adam_beta1, "adam-beta1");
  unit(adam_beta2, "adam-beta2");
  unit(sgd_momentum, "sgd-momentum");
  unit(lion_beta1, "lion-beta1");
  unit(lion_beta2, "lion-beta2");
  MG_CHECK(adam_eps > 0, "--adam-eps is {}; it must be positive", adam_eps);
  MG_CHECK(clip_grad >= 0, "--clip-grad is {}; it cannot be negative (0: no clipping)", clip_grad);
  MG_CHECK(muon_scalar == Method::adam || muon_scalar == Method::lion,
           "--muon-scalar-optimizer is {}; adam and lion are possible", name(muon_scalar));
  MG_CHECK(uses(Method::adam) || (exp_avg_type == DType::f32 && exp_avg_sq_type == DType::f32),
           "--exp-avg-dtype and --exp-avg-sq-dtype are of Adam's moments, and --optimizer is {}: "
           "drop them",
           name(method));
  muon.check();
}

Optimizer::Optimizer(std::vector<parallel::Placed*> parameters, const OptimizerConfig& config,
                     Runtime& runtime)
    : config_(config), runtime_(runtime) {
  const bool muon = config.method == Method::muon;
  rule_ = make_rule(muon ? config.muon_scalar : config.method, config);
  for (Tensor* scalar : {&norm_, &divisor_, &learning_rate_, &decoupled_rate_,
                         &scalars_.weight_decay, &scalars_.step, &scalars_.scale})
    *scalar = zeros({}, DType::f64, "scalar");
  std::erase_if(parameters, [](const auto* placed) { return !placed->parameter.trainable; });
  if (muon) {
    std::vector<const parallel::Placed*> taken;
    std::ranges::copy_if(parameters, std::back_inserter(taken),
                         [](const auto* placed) { return takes(*placed); });
    muon_ = std::make_unique<Muon>(config.muon, taken, runtime);
  }
  int64_t blocks = 0;
  for (parallel::Placed* placed : parameters) {
    entries_.push_back(make_entry(*placed));
    blocks += norm_blocks(*placed);
  }
  partials_ = zeros({blocks}, DType::f64, "norm.partials");
}

Tensor Optimizer::zeros(const Shape& shape, DType type, const std::string& label) {
  Tensor t = Tensor::empty(runtime_.arena(MemoryClass::optimizer), shape, type, label);
  kernels::table(runtime_.stream()).fill({.out = t, .value = 0}, runtime_.stream());
  return t;
}

Optimizer::Entry Optimizer::make_entry(parallel::Placed& placed) {
  const Parameter& p = placed.parameter;
  const DType wide = kernels::accumulator(p.value.dtype());
  Entry entry{.rule = muon_ != nullptr && takes(placed) ? muon_.get() : rule_.get()};
  Target& target = entry.target;
  target.placed = &placed;
  target.weight.value = p.value;
  target.learning_rate = placed.role == parallel::Role::hidden ? learning_rate_ : decoupled_rate_;
  if (p.value.dtype() == DType::bf16)
    target.weight.remainder = zeros(p.value.shape(), DType::i16, p.name + ".remainder");
  if (p.value.dtype() == DType::f16) {
    entry.master = Tensor::empty(runtime_.arena(MemoryClass::optimizer), p.value.shape(), wide,
                                 p.name + ".master");
    kernels::table(runtime_.stream()).copy({.x = p.value, .out = entry.master}, runtime_.stream());
    target.weight.value = entry.master;
  }
  for (const Rule::State& state : entry.rule->states(wide)) {
    target.states.push_back(
        zeros(p.value.shape(), state.type, fmt::format("{}.{}", p.name, state.name)));
  }
  return entry;
}

void Optimizer::set_scalar(Tensor& scalar, double value) {
  kernels::table(runtime_.stream()).fill({.out = scalar, .value = value}, runtime_.stream());
}

void Optimizer::find_norm(double divisor) {
  const kernels::Table& table = kernels::table(runtime_.stream());
  int64_t block = 0;
  for (const Entry& entry : entries_) {
    for (const parallel::Part& part : entry.target.placed->placement.parts) {
      for (const parallel::Slice& slice : part.slices) {
        const Tensor rows = part_rows(entry.target.gradient(), slice);
        const int64_t count = blocks_of(rows.elements());
        table.sum_of_squares({.x = rows, .partial = partials_.slice(0, block, count)},
                             runtime_.stream());
        block += count;
      }
    }
  }
  set_scalar(divisor_, divisor);
  table.grad_scale({.partials = partials_,
                    .divisor = divisor_,
                    .max_norm = config_.clip_grad,
                    .norm = norm_,
                    .scale = scalars_.scale},
                   runtime_.stream());
}

void Optimizer::update(const StepInputs& inputs) {
  ++steps_;
  set_scalar(learning_rate_, inputs.learning_rate);
  set_scalar(decoupled_rate_, inputs.decoupled_learning_rate.value_or(inputs.learning_rate));
  set_scalar(scalars_.weight_decay, inputs.weight_decay);
  set_scalar(scalars_.step, static_cast<double>(steps_));
  for (const Entry& e : entries_) {
    e.rule->update(e.target, scalars_, runtime_.stream());
    if (!e.master.defined()) continue;
    kernels::table(runtime_.stream())
        .copy({.x = e.master, .out = e.target.placed->parameter.value}, runtime_.stream());
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  for (const Entry& e : entries_) {
    const parallel::Placed* placed = e.target.placed;
    const auto add = [&](std::string_view name, const Tensor& value) {
      if (value.defined()) states.push_back({std::string(name), placed, value});
    };
    add("remainder", e.target.weight.remainder);
    add("master", e.master);
    const DType wide = kernels::accumulator(placed->parameter.value.dtype());
    size_t index = 0;
    for (const Rule::State& state : e.rule->states(wide)) add(state.name, e.target.states[index++]);
  }
  return states;
}

Tensor Optimizer::state(const parallel::Placed& placed, std::string_view name) const {
  for (const State& state : states())
    if (state.placed == &placed && state.name == name) return state.value;
  return {};
}

void Optimizer::resume(int64_t steps) {
  MG_ASSERT(steps >= 0);
  steps_ = steps;
}

}  // namespace megatron::optim
