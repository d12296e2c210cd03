#include "selftest/layouts.h"

#include "base/tolerances.h"
#include "selftest/experiment.h"

namespace megatron::selftest {
namespace {

using settings::LossScope;

constexpr int64_t kSequences = 8, kLength = 32;  // per step

const std::vector<optim::Method> kMethods = {optim::Method::sgd, optim::Method::adam,
                                             optim::Method::lion, optim::Method::muon};

models::RecomputeOptions whole_layers() {
  return {.granularity = models::RecomputeOptions::Granularity::full};
}

Experiment experiment(const TinyModel& model, DeviceKind device, DType type, DType weights,
                      LossScope scope, const Environment& environment) {
  return Experiment(model.model(), device, type, weights, scope, kSequences, kLength, environment);
}

}  // namespace

void check_layouts(const TinyModel& model, DeviceKind device, const Environment& environment,
                   Report& report) {
  const bool reference = device == DeviceKind::reference;
  const double bound = reference ? tolerance::kLayoutFp64 : tolerance::kLayoutFp32;
  const DType type = reference ? DType::f64 : DType::f32;
  const Experiment by_token = experiment(model, device, type, type, LossScope::token, environment);
  const Outcome whole = by_token.run({}, kMethods);
  for (const Layout& layout :
       {Layout{.micro_batch = 1}, Layout{.dp = 2, .recompute = whole_layers(), .micro_batch = 1},
        Layout{.dp = 2, .micro_batch = 4}, Layout{.dp = 4, .micro_batch = 2}}) {
    compare_outcomes(layout.str(), by_token.run(layout, kMethods), whole, bound, report);
  }
  const Experiment by_micro_batch =
      experiment(model, device, type, type, LossScope::micro_batch, environment);
  const Outcome pairs = by_micro_batch.run({.micro_batch = 2}, kMethods);
  for (const Layout& layout : {Layout{.dp = 2, .micro_batch = 2},
                               Layout{.dp = 4, .recompute = whole_layers(), .micro_batch = 2}}) {
    compare_outcomes(layout.str(), by_micro_batch.run(layout, kMethods), pairs, bound, report);
  }
}

void check_bf16_layouts(const TinyModel& model, DeviceKind device, const Environment& environment,
                        Report& report) {
  const auto experiment = [&](DType type) {
    return selftest::experiment(model, device, type, DType::bf16, LossScope::token, environment);
  };
  const Experiment bf16 = experiment(DType::bf16);
  const TensorMap oracle = experiment(DType::f32).gradients({});
  const auto errors = [&](const TensorMap& gradients) { return metrics(gradients, oracle); };
  const std::map<std::string, double> whole = errors(bf16.gradients({}));
  for (const Layout& layout :
       {Layout{.micro_batch = 1}, Layout{.recompute = whole_layers(), .micro_batch = 4},
        Layout{.dp = 2, .micro_batch = 4},
        Layout{.dp = 2, .recompute = whole_layers(), .micro_batch = 1}}) {
    for (const auto& [name, error] : errors(bf16.gradients(layout))) {
      report.compare("gradients", name + ", " + layout.str(), error,
                     tolerance::kBf16ErrorFactor * whole.at(name));
    }
  }
}

void check_bits(const TinyModel& model, DeviceKind device, const Environment& environment,
                Report& report) {
  for (const LossScope scope : {LossScope::token, LossScope::micro_batch}) {
    const Experiment tried = experiment(model, device, DType::f32, DType::f32, scope, environment);
    const Outcome first = tried.run({.micro_batch = 4}, kMethods);
    for (const Layout& layout :
         {Layout{.micro_batch = 4}, Layout{.recompute = whole_layers(), .micro_batch = 4},
          Layout{.micro_batch = 4, .threads = 2},
          Layout{.recompute = whole_layers(), .micro_batch = 4, .threads = 3}}) {
      compare_outcomes(layout.str(), tried.run(layout, kMethods), first, 0, report);
    }
    const Layout two{.dp = 2, .micro_batch = 2},
        again{.dp = 2, .recompute = whole_layers(), .micro_batch = 2, .threads = 2};
    compare_outcomes(again.str(), tried.run(again, kMethods), tried.run(two, kMethods), 0, report);
  }
}

}  // namespace megatron::selftest
