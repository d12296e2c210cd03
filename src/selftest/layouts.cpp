#include "selftest/layouts.h"

#include <fmt/core.h>

#include <cmath>
#include <functional>

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
  std::map<optim::Method, std::vector<double>> losses;
  std::vector<double> gradient_norms;
};

// Muon with products in the model's own type.
optim::OptimizerConfig config_of(optim::Method method) {
  optim::OptimizerConfig config{.method = method};
  config.muon.precision = optim::ProductPrecision::highest;
  return config;
}

class Experiment {
 public:
  // weights: the type in which the parameters begin, held in the type of the computation.
  Experiment(const TinyModel& model, DeviceKind device, DType type, DType weights, LossScope scope,
             const Environment& environment)
      : config_(model.config),
        device_(device),
        type_(type),
        weights_(weights),
        scope_(scope),
        environment_(environment) {}

  Outcome run(const Layout& layout) const {
    return on_ranks(layout, [&](comm::Group& group, Outcome& outcome) {
      train(layout, group, optim::Method::sgd, outcome);
      for (const optim::Method method :
           {optim::Method::adam, optim::Method::lion, optim::Method::muon})
        train(layout, group, method, outcome);
    });
  }
  TensorMap gradients(const Layout& layout) const {
    return on_ranks(layout,
                    [&](comm::Group& group, Outcome& outcome) {
                      Trial(*this, layout, optim::Method::sgd, group).take_gradients(outcome);
                    })
        .gradients;
  }

 private:
  // What rank 0 sees.
  Outcome on_ranks(const Layout& layout,
                   const std::function<void(comm::Group&, Outcome&)>& work) const {
    Outcome outcome;
    comm::run_ranks(layout.ranks, [&](comm::Group& world) {
      const std::unique_ptr<comm::Group> wrapped = environment_.wrap(world);
      Outcome mine;
      work(wrapped ? *wrapped : world, mine);
      if (world.rank() == 0) outcome = std::move(mine);
    });
    return outcome;
  }

  // A rank's model, with its parameters drawn, and its step.
  struct Trial {
    Trial(const Experiment& e, const Layout& layout, optim::Method method, comm::Group& group)
        : experiment(e),
          layout(layout),
          rank(group.rank()),
          runtime({e.device_, 0}, layout.threads),
          model(e.config_, runtime, e.type_, 3),
          step(model, e.type_, config_of(method), group, runtime,
               {.loss_scope = e.scope_,
                .recompute = layout.recompute,
                .vocabulary = e.config_.vocab_size,
                .positions = e.config_.max_position_embeddings,
                .buffer = {.bucket_bytes = 1 << 14},
                .table = e.environment_.table(e.device_)}) {
      models::GptModel drawn(e.config_, runtime, e.weights_, 3);
      randomize(drawn, 4);
      for (size_t i = 0; i < model.parameters().size(); ++i) {
        copy_from(model.parameters()[i]->parameter.value,
                  std::span<const double>(to_doubles(drawn.parameters()[i]->parameter.value)));
      }
    }

    void take_gradients(Outcome& outcome) {
      double divisor = 1;
      step.accumulate(experiment.batches(layout, rank, 0), divisor);
      outcome.gradients = canonical_gradients(model.parameters(), divisor);
    }

    const Experiment& experiment;
    const Layout& layout;
    int rank;
    Runtime runtime;
    models::GptModel model;
    training::TrainStep step;
  };

  void train(const Layout& layout, comm::Group& group, optim::Method method,
             Outcome& outcome) const {
    Trial trial(*this, layout, method, group);
    const bool sgd = method == optim::Method::sgd;
    if (sgd) trial.take_gradients(outcome);
    const double rate = sgd ? 0.05 : method == optim::Method::lion ? 1e-4 : 1e-3;
    for (int k = 0; k < kSteps; ++k) {
      const training::StepReport report =
          trial.step.run(batches(layout, trial.rank, k), {rate, 0.1});
      outcome.losses[method].push_back(report.loss);
      outcome.gradient_norms.push_back(report.gradient_norm);
    }
    if (sgd) outcome.parameters = canonical_values(trial.model.parameters());
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
  DType type_, weights_;
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

// tensor_metric of each tensor.
std::map<std::string, double> metrics(const TensorMap& tensors, const TensorMap& expected) {
  const double all = rms(expected);
  std::map<std::string, double> errors;
  for (const auto& [name, values] : expected) {
    errors[name] = tolerance::tensor_metric(difference_norm(tensors.at(name), values), norm(values),
                                            all, static_cast<int64_t>(values.size()));
  }
  return errors;
}

void compare_tensors(const std::string& kind, const std::string& layout, const TensorMap& tensors,
                     const TensorMap& expected, double bound, Report& report) {
  for (const auto& [name, error] : metrics(tensors, expected)) {
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
  for (const auto& [method, losses] : expected.losses) {
    compare_numbers(fmt::format("losses of {}", optim::name(method)), layout.str(),
                    outcome.losses.at(method), losses, bound, report);
  }
  compare_numbers("gradient norms", layout.str(), outcome.gradient_norms, expected.gradient_norms,
                  bound, report);
}

}  // namespace

void check_layouts(const TinyModel& model, DeviceKind device, const Environment& environment,
                   Report& report) {
  const bool reference = device == DeviceKind::reference;
  const double bound = reference ? tolerance::kLayoutFp64 : tolerance::kLayoutFp32;
  const DType type = reference ? DType::f64 : DType::f32;
  const Experiment by_token(model, device, type, type, LossScope::token, environment);
  const Outcome whole = by_token.run({});
  for (const Layout& layout :
       {Layout{.micro_batch = 1}, Layout{.ranks = 2, .micro_batch = 1, .recompute = true},
        Layout{.ranks = 2, .micro_batch = 4}, Layout{.ranks = 4, .micro_batch = 2}}) {
    compare(layout, by_token.run(layout), whole, bound, report);
  }
  const Experiment by_micro_batch(model, device, type, type, LossScope::micro_batch, environment);
  const Outcome pairs = by_micro_batch.run({.micro_batch = 2});
  for (const Layout& layout : {Layout{.ranks = 2, .micro_batch = 2},
                               Layout{.ranks = 4, .micro_batch = 2, .recompute = true}}) {
    compare(layout, by_micro_batch.run(layout), pairs, bound, report);
  }
}

void check_bf16_layouts(const TinyModel& model, const Environment& environment, Report& report) {
  const auto experiment = [&](DType type) {
    return Experiment(model, DeviceKind::cpu, type, DType::bf16, LossScope::token, environment);
  };
  const Experiment bf16 = experiment(DType::bf16);
  const TensorMap oracle = experiment(DType::f32).gradients({});
  const auto errors = [&](const TensorMap& gradients) { return metrics(gradients, oracle); };
  const std::map<std::string, double> whole = errors(bf16.gradients({}));
  for (const Layout& layout :
       {Layout{.micro_batch = 1}, Layout{.micro_batch = 4, .recompute = true},
        Layout{.ranks = 2, .micro_batch = 4},
        Layout{.ranks = 2, .micro_batch = 1, .recompute = true}}) {
    for (const auto& [name, error] : errors(bf16.gradients(layout))) {
      report.compare("gradients", name + ", " + layout.str(), error,
                     tolerance::kBf16ErrorFactor * whole.at(name));
    }
  }
}

void check_bits(const TinyModel& model, const Environment& environment, Report& report) {
  for (const LossScope scope : {LossScope::token, LossScope::micro_batch}) {
    const Experiment experiment(model, DeviceKind::cpu, DType::f32, DType::f32, scope, environment);
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
