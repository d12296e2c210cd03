#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/table.h"
#include "optim/norm_slots.h"

namespace megatron::optim {
namespace {

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

// The codes of exp_avg reach 28 times the root of exp_avg_sq (kernels/moment_codes.h).
void OptimizerConfig::check_codes() const {
  if (exp_avg_type != DType::u8) return;
  constexpr double kMost = 28;
  const double share = (1 - adam_beta2) * (1 - adam_beta1 * adam_beta1 / adam_beta2);
  const bool bounded = share > 0 && (1 - adam_beta1) / std::sqrt(share) <= kMost;
  MG_CHECK(bounded,
           "--exp-avg-dtype fp8 keeps exp_avg up to {} times the root of exp_avg_sq, and with "
           "--adam-beta1 {} and --adam-beta2 {} it may be larger: use --exp-avg-dtype bf16, or a "
           "larger --adam-beta2",
           kMost, adam_beta1, adam_beta2);
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
           "--muon-scalar-optimizer is {}; it must be adam or lion", name(muon_scalar));
  MG_CHECK(uses(Method::adam) || (exp_avg_type == DType::f32 && exp_avg_sq_type == DType::f32),
           "--exp-avg-dtype and --exp-avg-sq-dtype apply to Adam's moments, but --optimizer is "
           "{}: drop them",
           name(method));
  check_codes();
  MG_CHECK(offload_fraction >= 0 && offload_fraction <= 1,
           "--optimizer-offload-fraction is {}; it must lie in [0, 1]", offload_fraction);
  muon.check();
}

Optimizer::Optimizer(std::span<const parallel::Shard> shards, const OptimizerConfig& config,
                     const OptimizerGroups& groups, Runtime& runtime)
    : config_(config), groups_(groups), runtime_(runtime) {
  const bool muon = config.method == Method::muon;
  rule_ = make_rule(muon ? config.muon_scalar : config.method, config);
  StepScalars scalars;
  clipped_.resize(groups.clips_detached ? 2 : 1);
  for (Tensor* scalar : {&clipped_.front().norm, &divisor_, &sum_, &scalars.weight_decay,
                         &scalars.step, &scalars.scale})
    *scalar = zeros({}, DType::f64, "scalar");
  for (Clipped& clipped : clipped_) clipped.scalars = scalars;
  if (groups.clips_detached)
    for (Tensor* scalar : {&clipped_.back().norm, &clipped_.back().scalars.scale})
      *scalar = zeros({}, DType::f64, "scalar");
  if (muon) {
    std::vector<const parallel::ParameterSpec*> taken;
    for (const parallel::Shard& shard : shards) {
      if (!shard.placed->parameter.trainable || !takes(*shard.placed)) continue;
      MG_CHECK(shard.is_whole(),
               "--optimizer muon updates whole matrices, but this rank holds only {} of the {} "
               "elements of {}: use it without --use-distributed-optimizer and with "
               "--data-parallel-sharding-strategy no_shard, or use --optimizer adam",
               shard.size(), shard.placed->parameter.value.elements(),
               shard.placed->parameter.name);
      taken.push_back(shard.placed);
    }
    muon_ = std::make_unique<Muon>(config.muon, taken, groups.tensor, runtime);
  }
  const NormSlots slots = norm_slots(shards, groups.norm, runtime);
  squares_ = Tensor::empty(runtime.arena(MemoryClass::optimizer), {1 + groups.norm_window},
                           DType::f64, "norm.squares");
  double elements = 0, done = 0;
  for (const parallel::Shard& shard : shards)
    if (shard.placed->parameter.trainable) elements += static_cast<double>(shard.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].placed->parameter.trainable) continue;
    // Muon's ranks gather a matrix together, including those that have no row of it.
    const bool gathers = muon_ != nullptr && takes(*shards[i].placed);
    if (shards[i].size() == 0 && !gathers) continue;
    entries_.push_back(make_entry(shards[i], done < config.offload_fraction * elements));
    done += static_cast<double>(shards[i].size());
    entries_.back().first_block = slots.first[i];
  }
  list_updates();
  list_clipped(slots);
}

void Optimizer::list_clipped(const NormSlots& slots) {
  clipped_.front().blocks = slots.total;
  if (groups_.clips_detached) {
    clipped_.front().blocks -= slots.detached;
    clipped_.back().first = clipped_.front().blocks;
    clipped_.back().blocks = slots.detached;
  }
  for (Clipped& clipped : clipped_) {
    const int64_t end = clipped.first + clipped.blocks;
    for (int64_t begin = clipped.first; begin == clipped.first || begin < end;
         begin += groups_.norm_window)
      clipped.windows.push_back(squares_of(begin, std::min(groups_.norm_window, end - begin)));
  }
}

// Collects the updates of on-device shards, which run as one kernel call.
void Optimizer::list_updates() {
  std::vector<std::vector<Target>> targets(clipped_.size());
  std::vector<kernels::CopyArgs> copies;
  for (Entry& entry : entries_) {
    entry.clipped = groups_.clips_detached && entry.target.placed->detached ? 1 : 0;
    entry.listed = !entry.offloaded && entry.rule == rule_.get();
    if (!entry.listed) continue;
    targets[entry.clipped].push_back(entry.target);
    if (entry.master.defined()) copies.push_back({.x = entry.master, .out = entry.value});
  }
  for (size_t i = 0; i < clipped_.size(); ++i)
    clipped_[i].updates = rule_->together(targets[i], clipped_[i].scalars, runtime_);
  copies_ = kernels::together(std::move(copies), runtime_.arena(MemoryClass::optimizer),
                              runtime_.stream());
}

// Kernels that set elements of squares_, from 1 on, to this rank's sums over blocks [begin, begin +
// count) of the model.
std::unique_ptr<kernels::Together> Optimizer::squares_of(int64_t begin, int64_t count) const {
  std::vector<kernels::SumOfSquaresArgs> calls;
  for (const Entry& entry : entries_) {
    if (entry.first_block < 0) continue;
    const Tensor gradient = entry.target.gradient.view({entry.target.gradient.elements()});
    const int64_t first = std::max(begin, entry.first_block);
    const int64_t end = std::min(begin + count, entry.first_block + blocks_of(gradient.elements()));
    if (first >= end) continue;
    const int64_t from = (first - entry.first_block) * kernels::kNormBlock;
    const int64_t to =
        std::min(gradient.elements(), (end - entry.first_block) * kernels::kNormBlock);
    calls.push_back({.x = gradient.slice(0, from, to - from),
                     .partial = squares_.slice(0, 1 + first - begin, end - first)});
  }
  return kernels::together(std::move(calls), runtime_.arena(MemoryClass::optimizer),
                           runtime_.stream());
}

Tensor Optimizer::zeros(const Shape& shape, DType type, const std::string& label,
                        MemoryClass memory_class) {
  Tensor t = Tensor::empty(runtime_.arena(memory_class), shape, type, label);
  kernels::table(runtime_.stream()).fill({.out = t, .value = 0}, runtime_.stream());
  return t;
}

Optimizer::Entry Optimizer::make_entry(const parallel::Shard& shard, bool offloaded) {
  const MemoryClass where = offloaded ? MemoryClass::offload : MemoryClass::optimizer;
  const parallel::ParameterSpec& placed = *shard.placed;
  const std::string& name = placed.parameter.name;
  const DType type = shard.value.dtype(), wide = kernels::accumulator(type);
  Entry entry{.rule = muon_ != nullptr && takes(placed) ? muon_.get() : rule_.get(),
              .value = shard.value,
              .offloaded = offloaded};
  Target& target = entry.target;
  target.placed = &placed;
  target.begin = shard.begin;
  target.gradient = shard.gradient;
  target.weight.value = shard.value;
  target.learning_rate = rate_of(placed, *entry.rule);
  const Shape& shape = shard.value.shape();
  if (type == DType::bf16)
    target.weight.remainder = zeros(shape, DType::i16, name + ".remainder", where);
  if (type == DType::f16) {
    entry.master = zeros(shape, wide, name + ".master", where);
    kernels::table(runtime_.stream())
        .copy({.x = shard.value, .out = entry.master}, runtime_.stream());
    target.weight.value = entry.master;
  }
  for (const Rule::State& state : entry.rule->states(wide))
    target.states.push_back(
        zeros(shape, state.type, fmt::format("{}.{}", name, state.name), where));
  return entry;
}

Tensor Optimizer::rate_of(const parallel::ParameterSpec& placed, const Rule& rule) {
  const bool decoupled =
      placed.role == parallel::Role::embedding || placed.role == parallel::Role::output;
  const Rate wanted{.decoupled = decoupled,
                    .multiplier = placed.rate_multiplier * rule.rate_multiplier(placed)};
  for (const Rate& rate : rates_)
    if (rate.decoupled == wanted.decoupled && rate.multiplier == wanted.multiplier)
      return rate.value;
  rates_.push_back(wanted);
  return rates_.back().value = zeros({}, DType::f64, "scalar");
}

void Optimizer::set_scalar(const Tensor& scalar, double value) {
  kernels::table(runtime_.stream()).fill({.out = scalar, .value = value}, runtime_.stream());
}

// Sets elements 1 to `count` of squares_ to the sums of that window.
void Optimizer::find_squares(kernels::Together& window, int64_t count) {
  Stream& stream = runtime_.stream();
  const Tensor sums = squares_.slice(0, 1, count);
  const bool several = groups_.norm != nullptr && groups_.norm->size() > 1;
  if (several) kernels::table(stream).fill({.out = sums, .value = 0}, stream);
  window.run(stream);
  if (several)
    groups_.norm->all_reduce(sums, comm::Reduce::sum, stream, "gradient norm").wait(stream);
}

void Optimizer::find_norm(double divisor) {
  set_scalar(divisor_, divisor);
  for (const Clipped& clipped : clipped_) find_norm(clipped);
}

void Optimizer::find_norm(const Clipped& clipped) {
  Stream& stream = runtime_.stream();
  const kernels::Table& table = kernels::table(stream);
  table.fill({.out = squares_.slice(0, 0, 1), .value = 0}, stream);
  int64_t count = 0;
  for (size_t window = 0; window < clipped.windows.size(); ++window) {
    count = std::min(groups_.norm_window,
                     clipped.blocks - static_cast<int64_t>(window) * groups_.norm_window);
    find_squares(*clipped.windows[window], count);
    if (window + 1 == clipped.windows.size()) break;
    table.sum({.x = squares_.slice(0, 0, 1 + count), .out = sum_}, stream);
    table.copy({.x = sum_.view({1}), .out = squares_.slice(0, 0, 1)}, stream);
  }
  table.grad_scale({.partials = squares_.slice(0, 0, 1 + count),
                    .divisor = divisor_,
                    .max_norm = config_.clip_grad,
                    .norm = clipped.norm,
                    .scale = clipped.scalars.scale},
                   stream);
}

void Optimizer::update(const StepInputs& inputs) {
  ++steps_;
  const double decoupled = inputs.decoupled_learning_rate.value_or(inputs.learning_rate);
  for (Rate& rate : rates_)
    set_scalar(rate.value, rate.multiplier * (rate.decoupled ? decoupled : inputs.learning_rate));
  const StepScalars& shared = clipped_.front().scalars;
  set_scalar(shared.weight_decay, inputs.weight_decay);
  set_scalar(shared.step, static_cast<double>(steps_));
  for (const Clipped& clipped : clipped_) clipped.updates->run(runtime_.stream());
  copies_->run(runtime_.stream());
  for (const Entry& entry : entries_) {
    if (entry.offloaded) {
      update_offloaded(entry);
    } else if (!entry.listed) {
      update(entry);
    }
  }
}

void Optimizer::rehearse() {
  for (const Entry& entry : entries_) entry.rule->rehearse(entry.target, runtime_.stream());
}

void Optimizer::update(const Entry& entry) {
  Stream& stream = runtime_.stream();
  entry.rule->update(entry.target, clipped_[entry.clipped].scalars, stream);
  if (entry.master.defined())
    kernels::table(stream).copy({.x = entry.master, .out = entry.value}, stream);
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  for (const Entry& e : entries_) {
    const parallel::ParameterSpec* placed = e.target.placed;
    const auto add = [&](std::string_view name, const Tensor& value) {
      if (value.defined()) states.push_back({std::string(name), placed, e.target.begin, value});
    };
    add("remainder", e.target.weight.remainder);
    add("master", e.master);
    const DType wide = kernels::accumulator(placed->parameter.value.dtype());
    size_t index = 0;
    for (const Rule::State& state : e.rule->states(wide)) add(state.name, e.target.states[index++]);
  }
  return states;
}

Tensor Optimizer::state(const parallel::ParameterSpec& placed, std::string_view name) const {
  for (const State& state : states())
    if (state.placed == &placed && state.name == name) return state.value;
  return {};
}

void Optimizer::resume(int64_t steps) {
  MG_ASSERT(steps >= 0);
  steps_ = steps;
}

}  // namespace megatron::optim
