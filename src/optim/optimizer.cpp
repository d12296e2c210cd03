#include "optim/optimizer.h"

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

}  // namespace

void OptimizerConfig::check() const {
  const auto unit = [](double value, std::string_view flag) {
    MG_CHECK(value >= 0 && value < 1, "--{} is {}; it must lie in [0, 1)", flag, value);
  };
  unit(adam_beta1, "adam-beta1");
  unit(adam_beta2, "adam-beta2");
  unit(sgd_momentum, "sgd-momentum");
  MG_CHECK(adam_eps > 0, "--adam-eps is {}; it must be positive", adam_eps);
  MG_CHECK(clip_grad >= 0, "--clip-grad is {}; it cannot be negative (0: no clipping)", clip_grad);
}

Optimizer::Optimizer(std::vector<parallel::Placed*> parameters, const OptimizerConfig& config,
                     Runtime& runtime)
    : config_(config), runtime_(runtime) {
  Arena& arena = runtime.arena(MemoryClass::optimizer);
  const kernels::Table& table = kernels::table(runtime.stream());
  const auto zeros = [&](const Shape& shape, DType type, const std::string& label) {
    Tensor t = Tensor::empty(arena, shape, type, label);
    table.fill({.out = t, .value = 0}, runtime.stream());
    return t;
  };
  int64_t blocks = 0;
  for (parallel::Placed* placed : parameters) {
    const Parameter& p = placed->parameter;
    if (!p.trainable) continue;
    Entry entry{.placed = placed};
    const DType type = kernels::accumulator(p.value.dtype());
    if (p.value.dtype() == DType::bf16)
      entry.remainder = zeros(p.value.shape(), DType::i16, p.name + ".remainder");
    if (config.method == Method::adam) {
      entry.first = zeros(p.value.shape(), type, p.name + ".exp_avg");
      entry.second = zeros(p.value.shape(), type, p.name + ".exp_avg_sq");
    } else if (config.sgd_momentum > 0) {
      entry.first = zeros(p.value.shape(), type, p.name + ".momentum_buffer");
    }
    const int64_t row = p.value.elements() / std::max<int64_t>(p.value.size(0), 1);
    for (const parallel::Part& part : placed->placement.parts) {
      for (const parallel::Slice& slice : part.slices) blocks += blocks_of(slice.size * row);
    }
    entries_.push_back(std::move(entry));
  }
  partials_ = zeros({blocks}, DType::f64, "norm.partials");
  for (Tensor* scalar : {&norm_, &scale_, &divisor_, &learning_rate_, &weight_decay_, &step_}) {
    *scalar = zeros({}, DType::f64, "scalar");
  }
}

void Optimizer::set_scalar(Tensor& scalar, double value) {
  kernels::table(runtime_.stream()).fill({.out = scalar, .value = value}, runtime_.stream());
}

void Optimizer::find_norm(double divisor) {
  const kernels::Table& table = kernels::table(runtime_.stream());
  int64_t block = 0;
  for (const Entry& entry : entries_) {
    for (const parallel::Part& part : entry.placed->placement.parts) {
      for (const parallel::Slice& slice : part.slices) {
        const Tensor rows = part_rows(entry.placed->parameter.uses[0].grad, slice);
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
                    .scale = scale_},
                   runtime_.stream());
}

void Optimizer::update(const StepInputs& inputs) {
  ++steps_;
  set_scalar(learning_rate_, inputs.learning_rate);
  set_scalar(weight_decay_, inputs.weight_decay);
  set_scalar(step_, static_cast<double>(steps_));
  const kernels::Table& table = kernels::table(runtime_.stream());
  for (Entry& e : entries_) {
    const Parameter& p = e.placed->parameter;
    const kernels::MasterWeight weight{.value = p.value, .remainder = e.remainder};
    if (config_.method == Method::adam) {
      table.adam({.parameter = weight,
                  .grad = p.uses[0].grad,
                  .exp_avg = e.first,
                  .exp_avg_sq = e.second,
                  .lr = learning_rate_,
                  .weight_decay = weight_decay_,
                  .step = step_,
                  .scale = scale_,
                  .beta1 = config_.adam_beta1,
                  .beta2 = config_.adam_beta2,
                  .eps = config_.adam_eps,
                  .decay = e.placed->decay},
                 runtime_.stream());
    } else {
      table.sgd({.parameter = weight,
                 .grad = p.uses[0].grad,
                 .buffer = e.first,
                 .lr = learning_rate_,
                 .weight_decay = weight_decay_,
                 .step = step_,
                 .scale = scale_,
                 .momentum = config_.sgd_momentum,
                 .decay = e.placed->decay},
                runtime_.stream());
    }
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  const auto add = [&](const Entry& e, std::string_view name, const Tensor& value) {
    if (value.defined()) states.push_back({std::string(name), e.placed, value});
  };
  for (const Entry& e : entries_) {
    add(e, "remainder", e.remainder);
    add(e, config_.method == Method::adam ? "exp_avg" : "momentum_buffer", e.first);
    add(e, "exp_avg_sq", e.second);
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
