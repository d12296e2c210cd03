#include "training/step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/prediction_names.h"

namespace megatron::training {
namespace {

std::vector<parallel::ParameterSpec*> placed_of(std::span<models::Stage* const> chunks) {
  std::vector<parallel::ParameterSpec*> placed;
  for (const models::Stage* chunk : chunks)
    placed.insert(placed.end(), chunk->parameters().begin(), chunk->parameters().end());
  return placed;
}

std::vector<MetricDefinition> metrics_of(const models::Stage& chunk, const StepOptions& options) {
  std::vector<MetricDefinition> metrics = chunk.model()->metrics();
  for (const std::string& source : options.sources)
    metrics.push_back({.name = source_metric(source)});
  if (options.log_entropy) metrics.push_back({.name = std::string(kEntropy)});
  if (options.objective == nullptr) return metrics;
  for (MetricDefinition& metric : options.objective->metrics())
    metrics.push_back(std::move(metric));
  return metrics;
}

// Calls the listener at the beginning and end of the enclosing block.
class TimedPart {
 public:
  TimedPart(StepListener* listener, StepPart part) : listener_(listener), part_(part) {
    if (listener_ != nullptr) listener_->began(part_);
  }
  ~TimedPart() {
    if (listener_ != nullptr) listener_->ended(part_);
  }
  TimedPart(const TimedPart&) = delete;
  TimedPart& operator=(const TimedPart&) = delete;

 private:
  StepListener* listener_;
  StepPart part_;
};

}  // namespace

std::vector<const Span*> spans_of(std::span<models::Stage* const> chunks) {
  std::vector<const Span*> spans;
  for (const models::Stage* chunk : chunks) {
    for (const models::Block& block : chunk->blocks()) spans.push_back(&block.span);
    if (chunk->part().head) spans.push_back(&chunk->head());
  }
  return spans;
}

std::string_view name(StepPart part) {
  switch (part) {
    case StepPart::forward_backward: return "forward and backward";
    case StepPart::norm: return "gradient norm";
    case StepPart::update: return "update";
  }
  MG_ASSERT(false);
}

// All ranks have the same sums and therefore make the same decision. With fp16, the step may
// succeed at a smaller loss scale, unless the loss is not finite at the smallest one.
StepOutcome step_outcome(double loss, double gradient_norm, const optim::LossScale* scale,
                         bool check_finite) {
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) return StepOutcome::updated;
  if (scale != nullptr && (std::isfinite(loss) || !scale->least())) return StepOutcome::overflow;
  return check_finite ? StepOutcome::not_finite : StepOutcome::updated;
}

TrainStep::TrainStep(std::span<models::Stage* const> chunks, DType type,
                     const parallel::Ranks& ranks, Runtime& runtime, const StepOptions& options)
    : chunks_(chunks.begin(), chunks.end()),
      ranks_(ranks),
      tensor_(ranks.tensor()),
      work_reporter_(ranks.world().doing()),
      runtime_(runtime),
      options_(options),
      data_parallel_(placed_of(chunks), spans_of(chunks), ranks.data_parallel(), runtime,
                     options.data_parallel),
      pipeline_(ranks.pipeline(), ranks.stages(), ranks.stages_async(), runtime, options.pipeline),
      totals_({metrics_of(*chunks[0], options), tensor_.rank() == 0}, ranks, runtime),
      states_(chunks, ranks, runtime),
      loss_scale_(options.loss_scale.value_or(optim::LossScaleSettings{.constant = 1})),
      timer_(runtime.stream(), options.timing_level),
      pass_(chunks, type, ranks, runtime,
            {options_, data_parallel_, totals_, timer_, work_reporter_}) {
  options_.recompute.tensor = &tensor_;
  MG_ASSERT(options.objective == nullptr || options.loss_scope == settings::LossScope::token);
}

void TrainStep::begin(const optim::OptimizerConfig& optimizer) {
  data_parallel_.parameters_changed();
  optimizer_.emplace(
      shards(), optimizer,
      optim::OptimizerGroups{.norm = ranks_.norm(),
                             .tensor = tensor_.group,
                             .clips_detached = chunks_[0]->model()->facts().prediction.detached},
      runtime_);
}

void TrainStep::forward_backward(std::span<const corpus::HostBatch> micro_batches, bool rehearses) {
  const TimedPart part(pass_.listener(), StepPart::forward_backward);
  const int count = static_cast<int>(micro_batches.size());
  data_parallel_.begin_step(count);
  totals_.make_room(expected_ > 0 ? expected_ : count);
  totals_.begin_step();
  states_.begin_step();
  pass_.begin_step(micro_batches, loss_scale_.value(), pipeline_.stage(), rehearses);
  timer_.begin_step();
  try {
    const StepTimer::Block timed(timer_, &report::StepTimes::forward_backward, 1);
    pipeline_.run(count, pass_);
  } catch (...) {
    pass_.drop();
    throw;
  }
  pass_.end_step();
  work_reporter_.phase("reduction of gradients");
  const StepTimer::Block timed(timer_, &report::StepTimes::reduction, 1);
  data_parallel_.finish();
}

void TrainStep::expect(int64_t micro_batches) {
  expected_ = micro_batches;
  totals_.make_room(micro_batches);
}

void TrainStep::rehearse(std::span<const corpus::HostBatch> micro_batches) {
  forward_backward(micro_batches, true);
  optimizer_->rehearse();
  runtime_.stream().synchronize();
}

StepReport TrainStep::accumulate(std::span<const corpus::HostBatch> micro_batches,
                                 double& divisor) {
  MG_CHECK(!micro_batches.empty(), "a step needs at least one micro-batch");
  forward_backward(micro_batches);
  double counted = 0;
  for (const corpus::HostBatch& batch : micro_batches) counted += pass_.counted(batch);
  StepTotals::Sums sums = totals_.over_ranks(static_cast<int64_t>(micro_batches.size()), counted);
  StepReport report{.loss_scale = loss_scale_.value()};
  divisor = 1;
  if (!runtime_.device().has_data()) return report;
  MG_CHECK(sums.counted > 0,
           "no token of this step counts, because the loss mask excludes every label; check the "
           "data and --eod-mask-loss");
  report.counted = sums.counted;
  report.metrics = std::move(sums.metrics);
  report.loss = sums.loss / sums.counted;
  if (options_.objective == nullptr && weighs_losses(micro_batches[0], options_.loss_scope))
    report.loss /= report.loss_scale;
  divisor = options_.loss_scope == settings::LossScope::token
                ? report.counted
                : static_cast<double>(micro_batches.size()) * ranks_.samples().size();
  divisor *= report.loss_scale;
  return report;
}

void TrainStep::read_norms(StepReport& report) {
  report.gradient_norm = read_scalar(optimizer_->gradient_norm(), runtime_.stream());
  const Tensor detached = optimizer_->detached_norm();
  if (!detached.defined()) return;
  report.detached_norm = read_scalar(detached, runtime_.stream());
  report.metrics.push_back(
      {.name = std::string(models::kPredictionNorm), .value = *report.detached_norm});
}

StepReport TrainStep::run(std::span<const corpus::HostBatch> micro_batches,
                          const optim::StepInputs& inputs) {
  double divisor = 1;
  StepReport report = accumulate(micro_batches, divisor);
  {
    const TimedPart part(pass_.listener(), StepPart::norm);
    work_reporter_.phase("gradient norm");
    const StepTimer::Block timed(timer_, &report::StepTimes::norm, 1);
    optimizer_->find_norm(divisor);
    if (runtime_.device().has_data()) read_norms(report);
  }
  const double of_all = std::hypot(report.gradient_norm, report.detached_norm.value_or(0));
  report.outcome = step_outcome(report.loss, of_all, options_.loss_scale ? &loss_scale_ : nullptr,
                                options_.check_finite);
  loss_scale_.after_step(!report.updated());
  if (report.updated()) {
    const TimedPart part(pass_.listener(), StepPart::update);
    work_reporter_.phase("update");
    const StepTimer::Block timed(timer_, &report::StepTimes::update, 1);
    optimizer_->update(inputs);
    states_.update_step();
    data_parallel_.parameters_changed();
  }
  report.times = timer_.times();
  return report;
}

LossSum& LossSum::operator+=(const LossSum& other) {
  sum += other.sum;
  tokens += other.tokens;
  metrics.resize(std::max(metrics.size(), other.metrics.size()));
  for (size_t i = 0; i < other.metrics.size(); ++i) {
    metrics[i].sum += other.metrics[i].sum;
    metrics[i].weight += other.metrics[i].weight;
  }
  return *this;
}

double LossSum::mean() const {
  MG_CHECK(tokens > 0,
           "no token of the evaluated samples counts, because the loss mask excludes every label; "
           "check the data and --eod-mask-loss");
  return sum / tokens;
}

}  // namespace megatron::training
