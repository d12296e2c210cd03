#include "selftest/layouts.h"

#include <fmt/core.h>

#include <cmath>

#include "base/tolerances.h"
#include "comm/threads.h"
#include "selftest/canonical.h"
#include "training/step.h"

namespace megatron::selftest {
namespace {

using training::LossScope;

constexpr int64_t kSequences = 8, kLength = 32;  // of a global batch
constexpr int kSteps = 5;

struct Layout {
  int ranks = 1;
  int64_t micro_batch = kSequences;
  bool recompute = false;
  int threads = 1;

  std::string str() const {
    return fmt::format("DP {}, micro-batch {}{}{}", ranks, micro_batch,
                       recompute ? ", recompute" : "",
                       threads > 1 ? fmt::format(", {} threads", threads) : "");
  }
};

struct Outcome {
  TensorMap gradients, parameters;  // of the first batch; after the steps of SGD
  std::vector<double> sgd_losses, adam_losses, gradient_norms;
};

class Experiment {
 public:
  Experiment(const TinyModel& model, DeviceKind device, LossScope scope,
             const Environment& environment)
      : config_(model.config), device_(device), scope_(scope), environment_(environment) {}

  Outcome run(const Layout& layout) const {
    Outcome outcome;  // as rank 0 sees it
    comm::run_ranks(layout.ranks, [&](comm::Group& world) {
      const std::unique_ptr<comm::Group> wrapped = environment_.wrap(world);
      comm::Group& group = wrapped ? *wrapped : world;
      Outcome mine;
      train(layout, group, optim::Method::sgd, mine);
      train(layout, group, optim::Method::adam, mine);
      if (world.rank() == 0) outcome = std::move(mine);
    });
    return outcome;
  }

 private:
  void train(const Layout& layout, comm::Group& group, optim::Method method,
             Outcome& outcome) const {
    const DType type = device_ == DeviceKind::reference ? DType::f64 : DType::f32;
    Runtime runtime({device_, 0}, layout.threads);
    models::GptModel model(config_, runtime, type, 3);
    randomize(model, 4);
    training::TrainStep step(model, type, {.method = method}, group, runtime,
                             {.loss_scope = scope_,
                              .recompute = layout.recompute,
                              .vocabulary = config_.vocab_size,
                              .positions = config_.max_position_embeddings,
                              .buffer = {.bucket_bytes = 1 << 14},
                              .table = environment_.table(device_)});
    const bool sgd = method == optim::Method::sgd;
    if (sgd) {
      double divisor = 1;
      step.accumulate(batches(layout, group.rank(), 0), divisor);
      outcome.gradients = canonical_gradients(model.parameters(), divisor);
    }
    for (int k = 0; k < kSteps; ++k) {
      const training::StepReport report =
          step.run(batches(layout, group.rank(), k), sgd ? 0.05 : 1e-3, 0.1);
      (sgd ? outcome.sgd_losses : outcome.adam_losses).push_back(report.loss);
      outcome.gradient_norms.push_back(report.gradient_norm);
    }
    if (sgd) outcome.parameters = canonical_values(model.parameters());
  }

  std::vector<training::HostBatch> batches(const Layout& layout, int rank, int step) const {
    std::vector<training::HostBatch> batches;
    const int64_t share = kSequences / layout.ranks, begin = step * kSequences + rank * share;
    for (int64_t i = 0; i < share; i += layout.micro_batch) {
      batches.push_back(random_batch(config_, begin + i, layout.micro_batch, kLength));
    }
    return batches;
  }

  const models::GptConfig& config_;
  DeviceKind device_;
  LossScope scope_;
  const Environment& environment_;
};

double rms(const TensorMap& tensors) {
  double squares = 0, elements = 0;
  for (const auto& [name, values] : tensors) {
    squares += norm(values) * norm(values);
    elements += static_cast<double>(values.size());
  }
  return std::sqrt(squares / elements);
}

void compare_tensors(const std::string& kind, const std::string& layout, const TensorMap& tensors,
                     const TensorMap& expected, double bound, Report& report) {
  const double all = rms(expected);
  for (const auto& [name, values] : expected) {
    const double error =
        tolerance::tensor_metric(difference_norm(tensors.at(name), values), norm(values), all,
                                 static_cast<int64_t>(values.size()));
    report.compare(kind, name + ", " + layout, error, bound);
  }
}

void compare_numbers(const std::string& kind, const std::string& layout,
                     const std::vector<double>& numbers, const std::vector<double>& expected,
                     double bound, Report& report) {
  for (size_t i = 0; i < expected.size(); ++i) {
    report.compare(kind, fmt::format("step {}, {}", i, layout),
                   relative_error(numbers[i], expected[i]), bound);
  }
}

void compare(const Layout& layout, const Outcome& outcome, const Outcome& expected, double bound,
             Report& report) {
  compare_tensors("gradients", layout.str(), outcome.gradients, expected.gradients, bound, report);
  compare_tensors("parameters", layout.str(), outcome.parameters, expected.parameters, bound,
                  report);
  compare_numbers("losses of SGD", layout.str(), outcome.sgd_losses, expected.sgd_losses, bound,
                  report);
  compare_numbers("losses of AdamW", layout.str(), outcome.adam_losses, expected.adam_losses, bound,
                  report);
  compare_numbers("gradient norms", layout.str(), outcome.gradient_norms, expected.gradient_norms,
                  bound, report);
}

}  // namespace

void check_layouts(const TinyModel& model, DeviceKind device, const Environment& environment,
                   Report& report) {
  const double bound =
      device == DeviceKind::reference ? tolerance::kLayoutFp64 : tolerance::kLayoutFp32;
  const Experiment by_token(model, device, LossScope::token, environment);
  const Outcome whole = by_token.run({});
  for (const Layout& layout :
       {Layout{.micro_batch = 1}, Layout{.ranks = 2, .micro_batch = 1, .recompute = true},
        Layout{.ranks = 2, .micro_batch = 4}, Layout{.ranks = 4, .micro_batch = 2}}) {
    compare(layout, by_token.run(layout), whole, bound, report);
  }
  const Experiment by_micro_batch(model, device, LossScope::micro_batch, environment);
  const Outcome pairs = by_micro_batch.run({.micro_batch = 2});
  for (const Layout& layout : {Layout{.ranks = 2, .micro_batch = 2},
                               Layout{.ranks = 4, .micro_batch = 2, .recompute = true}}) {
    compare(layout, by_micro_batch.run(layout), pairs, bound, report);
  }
}

void check_bits(const TinyModel& model, const Environment& environment, Report& report) {
  for (const LossScope scope : {LossScope::token, LossScope::micro_batch}) {
    const Experiment experiment(model, DeviceKind::cpu, scope, environment);
    const Outcome first = experiment.run({.micro_batch = 4});
    for (const Layout& layout :
         {Layout{.micro_batch = 4}, Layout{.micro_batch = 4, .recompute = true},
          Layout{.micro_batch = 4, .threads = 2},
          Layout{.micro_batch = 4, .recompute = true, .threads = 3}}) {
      compare(layout, experiment.run(layout), first, 0, report);
    }
    const Layout two{.ranks = 2, .micro_batch = 2},
        again{.ranks = 2, .micro_batch = 2, .recompute = true, .threads = 2};
    compare(again, experiment.run(again), experiment.run(two), 0, report);
  }
}

}  // namespace megatron::selftest
