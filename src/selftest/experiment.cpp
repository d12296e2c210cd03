#include "selftest/experiment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "selftest/preferences.h"

namespace megatron::selftest {
namespace {

// Muon with products in the model's own type.
optim::OptimizerConfig config_of(optim::Method method, const Layout& layout) {
  optim::OptimizerConfig config{.method = method, .offload_fraction = layout.optimizer_offload};
  config.muon.precision = optim::ProductPrecision::highest;
  return config;
}

double rate_of(optim::Method method) {
  switch (method) {
    case optim::Method::sgd: return 0.05;
    case optim::Method::lion: return 1e-4;
    default: return 1e-3;
  }
}

// References of batches do not read their data set.
class NoSamples final : public data::Dataset {
 public:
  int64_t size() const override { return 0; }
  void read(int64_t, data::Sample&) const override {}
  void read_filler(data::Sample&) const override {}
};

double rms(const TensorMap& tensors) {
  double squares = 0, elements = 0;
  for (const auto& [name, values] : tensors) {
    squares += norm(values) * norm(values);
    elements += static_cast<double>(values.size());
  }
  return std::sqrt(squares / elements);
}

std::string recompute_text(const models::RecomputeOptions& r) {
  using Granularity = models::RecomputeOptions::Granularity;
  if (r.granularity == Granularity::none) return "";
  if (r.granularity == Granularity::selective) return ", recompute selective";
  return fmt::format(", recompute {} {}{}",
                     r.method == models::RecomputeOptions::Method::uniform ? "uniform" : "block",
                     r.layers, r.distribute ? " distributed" : "");
}

}  // namespace

std::string Layout::str() const {
  std::string text = fmt::format("TP {}{}", tp, sequence ? " SP" : "");
  text += fmt::format(", PP {}", pipeline.stages);
  if (pipeline.stages > 1) text += fmt::format(" {}", parallel::name(pipeline.kind));
  if (pipeline.chunks > 1) text += fmt::format(" x {}", pipeline.chunks);
  if (cp > 1) text += fmt::format(", CP {} {}", cp, parallel::name(exchange));
  if (!context_levels.empty()) text += fmt::format(" of {}", fmt::join(context_levels, " x "));
  text += fmt::format(", DP {}", dp);
  if (sharding != parallel::Sharding::none) text += fmt::format(" {}", parallel::name(sharding));
  if (ep > 1) text += fmt::format(", EP {}", ep);
  if (etp > 0) text += fmt::format(", ETP {}", etp);
  if (instances > 1) text += fmt::format(" in {} instances", instances);
  text += recompute_text(recompute);
  if (mlp_chunks > 1) text += fmt::format(", MLP in {} chunks", mlp_chunks);
  if (overlap) text += ", overlap";
  if (pipeline.parts > 1) text += " of two micro-batches";
  if (ep > 1 && dispatcher == parallel::TokenDispatcher::alltoall) text += ", all-to-all";
  if (offload.layers > 0) text += ", activations offloaded";
  if (optimizer_offload > 0) text += ", optimizer offloaded";
  if (bucket_elements != kBucketElements) text += fmt::format(", buckets of {}", bucket_elements);
  text += fmt::format(", micro-batch {}", micro_batch);
  if (!freeze.empty()) text += fmt::format(", {} frozen", fmt::join(freeze, " "));
  if (threads > 1) text += fmt::format(", {} threads", threads);
  return text;
}

training::ModelLayout Layout::model_layout() const {
  return {.ranks = {.layout = {.tp = tp,
                               .cp = cp,
                               .ep = ep,
                               .pp = pipeline.stages,
                               .etp = etp,
                               .instances = instances,
                               .hierarchical_cp = context_levels},
                    .sequence = sequence,
                    .pipeline = pipeline,
                    .sharding = sharding,
                    .async = overlap,
                    .async_experts = overlap,
                    .dispatcher = dispatcher,
                    .context_exchange = {exchange}},
          .layers = layers};
}

// A rank's model, with its parameters drawn, and its step.
struct Experiment::Trial {
  Trial(const Experiment& e, const Layout& layout, optim::Method method, comm::Group& world)
      : runtime({e.device_, 0}, layout.threads),
        model(e.model_->with({.mlp_chunks = layout.mlp_chunks}), e.type_, 3, layout.model_layout(),
              world, runtime,
              {.loss_scope = e.scope_,
               .objective = e.objective_,
               .recompute = layout.recompute,
               .offload = layout.offload,
               .data_parallel = {.sharding = layout.sharding,
                                 .bucket_elements = layout.bucket_elements,
                                 .overlap_reduce = layout.overlap,
                                 .overlap_gather = layout.overlap},
               .pipeline = {.overlap = layout.overlap},
               .freeze = layout.freeze,
               .table = e.environment_.table(e.device_)}) {
    e.environment_.place(model.shards(), parallel::place_layers(e.model_->num_layers(),
                                                                layout.pipeline, layout.layers));
    nn::initialize(model.step.states(), 4, runtime.stream());
    randomize(model.shards(), 4, runtime.stream(), e.weights_);
    model.step.begin(config_of(method, layout));
  }

  Runtime runtime;
  training::TrainedModel model;
};

Experiment::Experiment(models::Model model, DeviceKind device, DType type, DType weights,
                       settings::LossScope scope, int64_t sequences, int64_t length,
                       const Environment& environment,
                       std::shared_ptr<const training::Objective> objective, bool packed,
                       bool prefers)
    : model_(std::move(model)),
      device_(device),
      type_(type),
      weights_(weights),
      scope_(scope),
      sequences_(sequences),
      length_(length),
      environment_(environment),
      objective_(std::move(objective)),
      packed_(packed),
      prefers_(prefers) {}

std::vector<corpus::HostBatch> Experiment::batches(const Layout& layout,
                                                   const parallel::Ranks& ranks, int step) const {
  std::vector<corpus::HostBatch> batches;
  const int64_t share = sequences_ / layout.dp,
                begin = step * sequences_ + ranks.samples().rank() * share;
  for (int64_t i = 0; i < share; i += layout.micro_batch) {
    batches.push_back(
        random_batch(model_, begin + i, layout.micro_batch, length_, packed_ && !prefers_));
    if (prefers_) {
      mark_preferences(batches.back());
      environment_.pairs(ranks.samples().rank(), batches.back());
    }
    corpus::keep_tokens(batches.back(), ranks.tokens(layout.micro_batch, length_));
  }
  return batches;
}

void Experiment::train(const Layout& layout, comm::Group& world, optim::Method method,
                       Outcome& outcome, GatheredTensors& gradients,
                       GatheredTensors& parameters) const {
  Trial trial(*this, layout, method, world);
  training::TrainStep& step = trial.model.step;
  const parallel::Ranks& ranks = trial.model.ranks;
  const bool sgd = method == optim::Method::sgd;
  const auto reference = prefers_ ? environment_.reference(trial.model, type_) : nullptr;
  const auto batches_of = [&](int k) {
    std::vector<corpus::HostBatch> filled = batches(layout, ranks, k);
    if (reference != nullptr) reference->fill(NoSamples(), filled);
    return filled;
  };
  if (sgd) {
    double divisor = 1;
    step.accumulate(batches_of(0), divisor);
    gradients.add(
        step.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
  }
  for (int k = 0; k < kSteps; ++k) {
    const training::StepReport report = step.run(batches_of(k), {rate_of(method), 0.1});
    if (world.rank() != 0) continue;
    outcome.losses[method].push_back(report.loss);
    outcome.gradient_norms.push_back(report.gradient_norm);
    for (const MetricValue& metric : report.metrics)
      outcome.metrics[metric.name].push_back(metric.value);
  }
  if (sgd) parameters.add(step.shards(), [](const parallel::Shard& shard) { return shard.value; });
}

void Experiment::on_ranks(const Layout& layout, const std::function<void(comm::Group&)>& f) const {
  comm::run_ranks(layout.ranks(), [&](comm::Group& world) {
    const std::unique_ptr<comm::Group> wrapped = environment_.wrap(world);
    std::unique_ptr<comm::Group> made;
    f(comm::for_device(wrapped ? *wrapped : world, {device_, 0}, made));
  });
}

Outcome Experiment::run(const Layout& layout, const std::vector<optim::Method>& methods) const {
  Outcome outcome;
  GatheredTensors gradients, parameters;
  on_ranks(layout, [&](comm::Group& group) {
    for (const optim::Method method : methods)
      train(layout, group, method, outcome, gradients, parameters);
  });
  for (const auto& [kind, gathered] :
       {std::pair{"gradient", &gradients}, std::pair{"value", &parameters}}) {
    for (const std::string& name : gathered->different())
      outcome.complaints.push_back(fmt::format("ranks hold different {}s of {}", kind, name));
    for (const std::string& name : gathered->incomplete())
      outcome.complaints.push_back(fmt::format("no rank holds all of the {} of {}", kind, name));
  }
  outcome.gradients = std::move(gradients.tensors());
  outcome.parameters = std::move(parameters.tensors());
  return outcome;
}

TensorMap Experiment::gradients(const Layout& layout) const {
  GatheredTensors gathered;
  on_ranks(layout, [&](comm::Group& group) {
    Trial trial(*this, layout, optim::Method::sgd, group);
    double divisor = 1;
    trial.model.step.accumulate(batches(layout, trial.model.ranks, 0), divisor);
    gathered.add(
        trial.model.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
  });
  return std::move(gathered.tensors());
}

std::map<std::string, double> metrics(const TensorMap& tensors, const TensorMap& expected) {
  const double all = rms(expected);
  std::map<std::string, double> errors;
  for (const auto& [name, values] : expected) {
    const auto found = tensors.find(name);
    errors[name] =
        found == tensors.end()
            ? INFINITY
            : tolerance::tensor_metric(difference_norm(found->second, values), norm(values), all,
                                       static_cast<int64_t>(values.size()));
  }
  return errors;
}

void compare_outcomes(const std::string& what, const Outcome& outcome, const Outcome& expected,
                      double bound, Report& report) {
  const auto tensors = [&](const std::string& kind, const TensorMap& mine,
                           const TensorMap& wanted) {
    for (const auto& [name, error] : metrics(mine, wanted))
      report.compare(kind, fmt::format("{}, {}", name, what), error, bound);
  };
  const auto numbers = [&](const std::string& kind, const std::vector<double>& mine,
                           const std::vector<double>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i)
      report.compare(kind, fmt::format("step {}, {}", i, what),
                     relative_error(mine.at(i), wanted[i]), bound);
  };
  tensors("gradients", outcome.gradients, expected.gradients);
  tensors("parameters", outcome.parameters, expected.parameters);
  for (const auto& [method, losses] : outcome.losses)
    numbers(fmt::format("losses of {}", optim::name(method)), losses, expected.losses.at(method));
  if (outcome.losses.size() == expected.losses.size())
    numbers("gradient norms", outcome.gradient_norms, expected.gradient_norms);
  // Metrics are f64 sums added in the order of the layout, so they differ by rounding.
  for (const auto& [name, values] : expected.metrics)
    for (size_t i = 0; i < values.size(); ++i)
      report.compare(name, fmt::format("step {}, {}", i, what),
                     relative_error(outcome.metrics.at(name).at(i), values[i]),
                     std::max(bound, tolerance::kLayoutFp64));
  for (const std::string& complaint : outcome.complaints)
    report.fail(fmt::format("{}: {}", what, complaint));
}

}  // namespace megatron::selftest
