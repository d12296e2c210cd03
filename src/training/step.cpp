#include "training/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "parallel/schedule.h"

namespace megatron::training {
namespace {

std::vector<Parameter*> parameters_of(const models::Stage& stage) {
  std::vector<Parameter*> parameters;
  for (parallel::Placed* placed : stage.parameters()) parameters.push_back(&placed->parameter);
  return parameters;
}

std::vector<parallel::Placed*> placed_of(const models::Stage& stage) {
  return {stage.parameters().begin(), stage.parameters().end()};
}

// The most micro-batches that are between forward and backward at once.
int largest_in_flight(const parallel::Schedule& schedule) {
  int live = 0, largest = 0;
  for (const parallel::Action& action : schedule) {
    if (action.kind == parallel::Action::Kind::forward) ++live;
    if (action.kind == parallel::Action::Kind::backward) --live;
    largest = std::max(largest, live);
  }
  return largest;
}

// Tells when the block that it lives in begins and ends.
class Told {
 public:
  Told(StepListener* listener, StepPart part) : listener_(listener), part_(part) {
    if (listener_ != nullptr) listener_->began(part_);
  }
  ~Told() {
    if (listener_ != nullptr) listener_->ended(part_);
  }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

 private:
  StepListener* listener_;
  StepPart part_;
};

}  // namespace

std::string_view name(StepPart part) {
  switch (part) {
    case StepPart::forward_backward: return "forward and backward";
    case StepPart::norm: return "gradient norm";
    case StepPart::update: return "update";
  }
  MG_ASSERT(false);
}

TrainStep::TrainStep(models::Stage& stage, DType type, const optim::OptimizerConfig& optimizer,
                     comm::Group& data_parallel, Runtime& runtime, const StepOptions& options)
    : stage_(stage),
      data_parallel_(data_parallel),
      runtime_(runtime),
      options_(options),
      gradients_(parameters_of(stage), data_parallel, runtime, options.buffer),
      optimizer_(placed_of(stage), optimizer, runtime),
      loss_scale_(options.loss_scale.value_or(LossScaleSettings{.constant = 1})),
      type_(type) {}

void TrainStep::forward(InFlight& slot, const HostBatch& host, int micro_batch) {
  const nn::Batch& batch = slot.batch.fill(host, options_.loss_scope, options_.vocabulary,
                                           options_.positions, loss_scale_.value());
  if (slot.tape == nullptr) {
    slot.tape = std::make_unique<Tape>(runtime_, Tape::Mode::record, options_.table);
    slot.tape->listen(&gradients_);
    if (options_.spans != nullptr) slot.tape->listen(options_.spans);
    if (listener_ != nullptr) slot.tape->listen(static_cast<SpanListener*>(listener_));
  }
  const Bundle out =
      models::forward(stage_, *slot.tape, batch, models::Phase::train, options_.recompute);
  const Tensor loss = models::head_loss(stage_, *slot.tape, out, batch);
  kernels::table(runtime_.stream())
      .sum({.x = loss, .out = totals_.slice(0, micro_batch, 1).view({})}, runtime_.stream());
}

void TrainStep::forward_backward(std::span<const HostBatch> micro_batches) {
  const Told part(listener_, StepPart::forward_backward);
  const int count = static_cast<int>(micro_batches.size());
  gradients_.begin_step(count);
  make_totals(expected_ > 0 ? expected_ : count);
  const parallel::Schedule schedule = parallel::one_f_one_b(0, 1, count);
  const int live = largest_in_flight(schedule);
  while (static_cast<int>(in_flight_.size()) < live) {
    in_flight_.push_back({DeviceBatch(runtime_, type_), nullptr});
  }
  for (const parallel::Action& action : schedule) {
    InFlight& slot = in_flight_[static_cast<size_t>(action.micro_batch % live)];
    micro_batch_ = action.micro_batch;
    if (action.kind == parallel::Action::Kind::backward) {
      slot.tape->backward();
      slot.tape->clear();
    } else {
      forward(slot, micro_batches[static_cast<size_t>(action.micro_batch)], action.micro_batch);
    }
  }
  micro_batch_ = -1;
  gradients_.finish();
}

void TrainStep::make_totals(int64_t micro_batches) {
  if (totals_.defined() && totals_.size(0) == micro_batches + 1) return;
  totals_ = Tensor::empty(runtime_.arena(MemoryClass::optimizer), {micro_batches + 1}, DType::f64,
                          "step.totals");
}

void TrainStep::expect(int64_t micro_batches) {
  expected_ = micro_batches;
  make_totals(micro_batches);
}

StepListener* TrainStep::listen(StepListener* listener) {
  for (InFlight& slot : in_flight_) slot.tape.reset();  // a tape keeps its listeners
  return std::exchange(listener_, listener);
}

StepReport TrainStep::accumulate(std::span<const HostBatch> micro_batches, double& divisor) {
  MG_CHECK(!micro_batches.empty(), "a step needs at least one micro-batch");
  forward_backward(micro_batches);
  double counted = 0;
  for (const HostBatch& batch : micro_batches) counted += batch.counted();
  const auto count = static_cast<int64_t>(micro_batches.size());
  kernels::table(runtime_.stream())
      .fill({.out = totals_.slice(0, count, 1), .value = counted}, runtime_.stream());
  data_parallel_.all_reduce(totals_, comm::Reduce::sum, runtime_.stream(), "step.totals")
      .wait(runtime_.stream());
  StepReport report{.loss_scale = loss_scale_.value()};
  if (!runtime_.device().has_data()) {
    divisor = 1;
    return report;
  }
  runtime_.stream().synchronize();
  const std::vector<double> totals = to_doubles(totals_);
  report.tokens = totals.back();
  MG_CHECK(report.tokens > 0,
           "no token of this step counts: the loss mask hides every label; check the data and "
           "--eod-mask-loss");
  report.loss = std::accumulate(totals.begin(), totals.end() - 1, 0.0) / report.tokens;
  divisor = options_.loss_scope == LossScope::token
                ? report.tokens
                : static_cast<double>(micro_batches.size()) * data_parallel_.size();
  divisor *= loss_scale_.value();
  return report;
}

// All ranks hold the same sums, so that they decide alike. A smaller loss scale may help where
// there is one; a loss that is not finite at the least, it cannot.
StepOutcome TrainStep::outcome(double loss, double gradient_norm) const {
  if (std::isfinite(loss) && std::isfinite(gradient_norm)) return StepOutcome::updated;
  if (options_.loss_scale && (std::isfinite(loss) || !loss_scale_.least()))
    return StepOutcome::overflow;
  return options_.check_finite ? StepOutcome::not_finite : StepOutcome::updated;
}

StepReport TrainStep::run(std::span<const HostBatch> micro_batches,
                          const optim::StepInputs& inputs) {
  double divisor = 1;
  StepReport report = accumulate(micro_batches, divisor);
  {
    const Told part(listener_, StepPart::norm);
    optimizer_.find_norm(divisor);
    if (runtime_.device().has_data()) {
      report.gradient_norm = read_scalar(optimizer_.gradient_norm(), runtime_.stream());
      report.outcome = outcome(report.loss, report.gradient_norm);
    }
  }
  loss_scale_.after_step(!report.updated());
  if (!report.updated()) return report;
  const Told part(listener_, StepPart::update);
  optimizer_.update(inputs);
  return report;
}

double LossSum::mean() const {
  MG_CHECK(tokens > 0, "no token of the evaluated samples counts: the loss mask hides every label");
  return sum / tokens;
}

}  // namespace megatron::training
