#include "training/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "training/rank_sums.h"

namespace megatron::training {
namespace {

using Way = CudaGraphRunner::Way;

std::vector<parallel::ParameterSpec*> placed_of(std::span<models::Stage* const> chunks) {
  std::vector<parallel::ParameterSpec*> placed;
  for (const models::Stage* chunk : chunks)
    placed.insert(placed.end(), chunk->parameters().begin(), chunk->parameters().end());
  return placed;
}

std::vector<const Span*> spans_of(std::span<models::Stage* const> chunks) {
  std::vector<const Span*> spans;
  for (const models::Stage* chunk : chunks) {
    for (const models::Block& block : chunk->blocks()) spans.push_back(&block.span);
    if (chunk->part().head) spans.push_back(&chunk->head());
  }
  return spans;
}

// Calls the listener when the block that it lives in begins and ends.
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

std::string_view name(StepPart part) {
  switch (part) {
    case StepPart::forward_backward: return "forward and backward";
    case StepPart::norm: return "gradient norm";
    case StepPart::update: return "update";
  }
  MG_ASSERT(false);
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
      metrics_(chunks[0]->model()->metrics(), tensor_.rank() == 0),
      states_(chunks, ranks, runtime),
      loss_scale_(options.loss_scale.value_or(optim::LossScaleSettings{.constant = 1})),
      type_(type) {
  options_.recompute.tensor = &tensor_;
  records_ = options_.record_after && runtime.stream().target().kind == DeviceKind::cuda;
  if (!records_) return;
  MG_CHECK(!runtime.device().has_data() || tensor_.size() == 1 || tensor_.group->queued(),
           "--cuda-graph-impl local cannot capture communication of tensor-parallel ranks "
           "through host memory: give each rank its own GPU, for NCCL, or leave the flag out");
  loss_ = Tensor::empty(runtime.arena(MemoryClass::optimizer), {}, DType::f64, "step.loss");
  if (in_parts()) backward_memory_.emplace(runtime);
}

void TrainStep::begin(const optim::OptimizerConfig& optimizer) {
  data_parallel_.parameters_changed();
  optimizer_.emplace(shards(), optimizer,
                     optim::OptimizerGroups{.norm = ranks_.norm(), .tensor = tensor_.group},
                     runtime_);
}

size_t& TrainStep::place_of(int chunk, int micro_batch) {
  return places_[static_cast<size_t>(chunk) * batches_.size() + static_cast<size_t>(micro_batch)];
}

// Places for all that is between forward and backward at once.
void TrainStep::make_room() {
  const int count = static_cast<int>(batches_.size());
  const parallel::Schedule schedule = ranks_.pipeline().schedule(pipeline_.stage(), count);
  const auto live = static_cast<size_t>(parallel::live_micro_batches(schedule));
  while (in_flight_.size() < live) in_flight_.push_back(make_slot());
  for (InFlight& slot : in_flight_) slot.taken = false;
  places_.assign(chunks_.size() * batches_.size(), 0);
}

// The first one that is free, so that every step does the same.
TrainStep::InFlight& TrainStep::take_place(int chunk, int micro_batch) {
  const auto free = std::ranges::find(in_flight_, false, &InFlight::taken);
  MG_ASSERT(free != in_flight_.end());
  free->taken = true;
  place_of(chunk, micro_batch) = static_cast<size_t>(free - in_flight_.begin());
  return *free;
}

TrainStep::InFlight TrainStep::make_slot() {
  InFlight slot{.batch = corpus::DeviceBatch(runtime_, type_)};
  if (!records_) return slot;
  std::vector<Parameter*> parameters;
  for (parallel::ParameterSpec* placed : placed_of(chunks_))
    parameters.push_back(&placed->parameter);
  slot.recorded =
      std::make_unique<CudaGraphRunner>(std::move(parameters), runtime_, data_parallel_,
                                        *options_.record_after, tensor_.group, tensor_.async);
  if (in_parts()) slot.memory = std::make_unique<OwnArenas>(runtime_);
  return slot;
}

// Data-parallel ranks that overlap exchanges with compute do so in the micro-batches at the ends of
// the step.
bool TrainStep::recordable(int micro_batch) const {
  if (rehearses_ || options_.timing_level >= 2 || listener_ != nullptr ||
      options_.spans != nullptr || options_.table != nullptr ||
      runtime_.stream().watcher() != nullptr)
    return false;
  if (ranks_.data().size() == 1) return true;
  const bool first = micro_batch == 0, last = micro_batch + 1 == static_cast<int>(batches_.size());
  return !(first && options_.data_parallel.overlap_gather) &&
         !(last && options_.data_parallel.overlap_reduce);
}

RecordedCounts TrainStep::recorded() const {
  RecordedCounts counts;
  for_each_recorded([&](const CudaGraphRunner& recorded) {
    counts.recorded += recorded.counts().recorded;
    counts.replayed += recorded.counts().replayed;
  });
  return counts;
}

int64_t TrainStep::own_memory(MemoryClass memory_class) const {
  int64_t bytes = backward_memory_ ? backward_memory_->high_water(memory_class) : 0;
  for (const InFlight& slot : in_flight_)
    if (slot.memory != nullptr) bytes += slot.memory->high_water(memory_class);
  return bytes;
}

int64_t TrainStep::most_own_memory(MemoryClass memory_class) const {
  int64_t most = 0;
  for (const InFlight& slot : in_flight_)
    if (slot.memory != nullptr) most = std::max(most, slot.memory->high_water(memory_class));
  return most * static_cast<int64_t>(in_flight_.size()) +
         (backward_memory_ ? backward_memory_->high_water(memory_class) : 0);
}

Tensor TrainStep::total(int micro_batch) const { return totals_.slice(0, micro_batch, 1).view({}); }

void TrainStep::make_tape(InFlight& slot) {
  slot.tape = std::make_unique<Tape>(runtime_, Tape::Mode::record, options_.table);
  slot.tape->listen(slot.recorded ? static_cast<GradientListener*>(slot.recorded.get())
                                  : &data_parallel_);
  slot.tape->collect(&metrics_);
  slot.tape->listen(static_cast<SpanListener*>(&work_reporter_));
  slot.tape->listen(static_cast<SpanListener*>(&data_parallel_));
  if (options_.spans != nullptr) slot.tape->listen(options_.spans);
  if (listener_ != nullptr) slot.tape->listen(static_cast<SpanListener*>(listener_));
}

// Now, with the device's work done; 0 where the level is not asked for.
double TrainStep::time_at(int64_t level) {
  if (options_.timing_level < level) return 0;
  runtime_.stream().synchronize();
  return now_seconds();
}

// Adds the time of the block that it lives in.
class TrainStep::Timed {
 public:
  Timed(TrainStep& step, double& sum, int64_t level)
      : step_(step), sum_(sum), level_(level), begin_(step.time_at(level)) {}
  ~Timed() {
    try {
      sum_ += step_.time_at(level_) - begin_;
    } catch (const std::exception&) {  // a failure of the device, which its next call reports
    }
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  TrainStep& step_;
  double& sum_;
  int64_t level_;
  double begin_;
};

TrainStep::InFlight& TrainStep::begin_forward(const parallel::Action& action) {
  InFlight& slot = take_place(action.chunk, action.micro_batch);
  slot.filled = &slot.batch.fill(batches_[static_cast<size_t>(action.micro_batch)],
                                 chunks_[static_cast<size_t>(action.chunk)]->model(),
                                 options_.loss_scope, loss_scale_.value());
  return slot;
}

Tensor TrainStep::forward(const parallel::Action& action, const Tensor& input) {
  action_ = action;
  const int micro_batch = action.micro_batch;
  work_reporter_.phase("forward", micro_batch);
  const Timed timed(*this, times_.forward, 2);
  if (ranks_.pipeline().parts > 1) return forward_part(action, input);
  const models::Stage& stage = *chunks_[static_cast<size_t>(action.chunk)];
  InFlight& slot = begin_forward(action);
  const nn::Batch& batch = *slot.filled;
  if (in_parts()) return forward_in_parts(slot, stage, input, batch);
  if (slot.recorded != nullptr && slot.recorded->begin(batch, {}, {.first = micro_batch == 0},
                                                       recordable(micro_batch)) == Way::replay)
    return {};
  return forward_of(slot, stage, micro_batch, input, batch);
}

Tensor TrainStep::forward_of(InFlight& slot, const models::Stage& stage, int micro_batch,
                             const Tensor& input, const nn::Batch& batch) {
  const Bundle in = input_of(slot, input);
  return output_of(slot, stage, micro_batch,
                   models::forward(stage, *slot.tape, in, batch, models::Phase::train,
                                   options_.recompute, options_.offload),
                   batch);
}

Bundle TrainStep::input_of(InFlight& slot, const Tensor& input) {
  if (slot.tape == nullptr) make_tape(slot);
  if (!input.defined()) return {};
  slot.input = slot.tape->leaf(input);
  return {{"hidden", std::exchange(slot.input, Var({}, slot.input.id))}};  // what reads it keeps it
}

Tensor TrainStep::output_of(InFlight& slot, const models::Stage& stage, int micro_batch,
                            const Bundle& out, const nn::Batch& batch) {
  if (!stage.part().head) {
    slot.output = models::flowing(*slot.tape, out);
    return std::exchange(slot.output.value, {});  // backward needs its gradient only
  }
  const Tensor loss = models::head_loss(stage, *slot.tape, out, batch);
  const bool records = slot.recorded != nullptr && slot.recorded->way() == Way::record;
  kernels::table(runtime_.stream())
      .sum({.x = loss, .out = records ? loss_ : total(micro_batch)}, runtime_.stream());
  return {};
}

// What is under way when a forward and a backward pass stop is the other's compute time.
Tensor TrainStep::forward_part(const parallel::Action& action, const Tensor& input) {
  const models::Stage& stage = *chunks_[static_cast<size_t>(action.chunk)];
  InFlight& slot =
      action.begins() ? begin_forward(action) : in_flight(action.chunk, action.micro_batch);
  if (action.begins()) {
    const Bundle in = input_of(slot, input);
    slot.pass.emplace(stage, *slot.tape, in, *slot.filled, models::Phase::train,
                      options_.recompute);
  }
  if (!action.ends()) {
    slot.pass->advance();
    return {};
  }
  const Bundle out = slot.pass->finish();
  slot.pass.reset();
  return output_of(slot, stage, action.micro_batch, out, *slot.filled);
}

Tensor TrainStep::backward_part(const parallel::Action& action, const Tensor& gradient) {
  InFlight& slot = in_flight(action.chunk, action.micro_batch);
  if (action.ends()) {
    slot.taken = false;
    return backward_of(slot, gradient, true);
  }
  if (gradient.defined()) slot.tape->set_gradient(slot.output, gradient);
  slot.tape->backward_to_stop();
  return {};
}

Tensor TrainStep::backward(const parallel::Action& action, const Tensor& gradient, bool weights) {
  action_ = action;
  const int micro_batch = action.micro_batch;
  work_reporter_.phase("backward", micro_batch);
  const Timed timed(*this, times_.backward, 2);
  if (action.parts > 1) return backward_part(action, gradient);
  InFlight& slot = in_flight(action.chunk, micro_batch);
  slot.taken = !weights;
  if (in_parts()) {
    MG_ASSERT(weights);
    return backward_in_parts(slot, micro_batch, gradient);
  }
  if (slot.recorded == nullptr) return backward_of(slot, gradient, weights);
  if (slot.recorded->way() != Way::replay) backward_of(slot, gradient, weights);
  slot.recorded->end();
  take_loss(slot, micro_batch);
  return {};
}

Tensor TrainStep::backward_of(InFlight& slot, const Tensor& gradient, bool weights) {
  Tensor of_input;
  if (gradient.defined()) slot.tape->set_gradient(slot.output, gradient);
  slot.tape->backward(weights ? BackwardPart::all : BackwardPart::input);
  if (slot.input.needs_gradient()) of_input = slot.tape->gradient(slot.input);
  if (weights) end(slot);
  return of_input;
}

// Of a micro-batch that is recorded or replayed.
void TrainStep::take_loss(const InFlight& slot, int micro_batch) {
  if (slot.recorded->way() != Way::eager) copy(loss_, total(micro_batch));
}

void TrainStep::weight(int chunk, int micro_batch) {
  action_ = {parallel::Action::Kind::weight, chunk, micro_batch};
  work_reporter_.phase("weight gradients", micro_batch);
  const Timed timed(*this, times_.backward, 2);
  InFlight& slot = in_flight(chunk, micro_batch);
  slot.taken = false;
  slot.tape->backward(BackwardPart::weight);
  end(slot);
}

void TrainStep::end(InFlight& slot) {
  slot.input = slot.output = {};
  slot.tape->clear();
}

Tensor TrainStep::receive_into(int, int micro_batch) {
  return boundary(micro_batch, "pipeline.received");
}

// What goes from stage to stage.
Tensor TrainStep::boundary(int micro_batch, std::string_view label) {
  const corpus::HostBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  const int64_t tokens = tensor_.tokens(batch.sequences * batch.length).size;
  return Tensor::empty(runtime_.arena(MemoryClass::activations), {tokens, options_.hidden}, type_,
                       label);
}

void TrainStep::forward_backward(std::span<const corpus::HostBatch> micro_batches) {
  const TimedPart part(listener_, StepPart::forward_backward);
  const int count = static_cast<int>(micro_batches.size());
  data_parallel_.begin_step(count);
  make_totals(expected_ > 0 ? expected_ : count);
  metrics_.begin_step(runtime_.stream());
  states_.begin_step();
  batches_ = micro_batches;
  make_room();
  for_each_recorded([](CudaGraphRunner& recorded) { recorded.begin_step(); });
  times_ = {};
  try {
    const Timed timed(*this, times_.forward_backward, 1);
    pipeline_.run(count, *this);
  } catch (...) {
    for_each_recorded([](CudaGraphRunner& recorded) { recorded.drop(); });
    drop_tapes();
    throw;
  }
  action_.reset();
  work_reporter_.phase("reduction of gradients");
  const Timed timed(*this, times_.reduction, 1);
  data_parallel_.finish();
}

// Recorded work has the addresses of the metrics' sums; these stay where they are when the number of micro-batches
// changes.
void TrainStep::make_totals(int64_t micro_batches) {
  if (!metrics_.empty() && !metrics_.sums().defined())
    metrics_.use(Tensor::empty(runtime_.arena(MemoryClass::optimizer), {metrics_.size()},
                               DType::f64, "step.metrics"));
  if (totals_.defined() && totals_.size(0) == micro_batches + 1) return;
  sums_ = Tensor::empty(runtime_.arena(MemoryClass::optimizer),
                        {micro_batches + 1 + metrics_.size()}, DType::f64, "step.totals");
  totals_ = sums_.slice(0, 0, micro_batches + 1);
}

void TrainStep::expect(int64_t micro_batches) {
  expected_ = micro_batches;
  make_totals(micro_batches);
}

void TrainStep::drop_tapes() {
  for (InFlight& slot : in_flight_) {
    slot.pass.reset();
    slot.tape.reset();
  }
}

StepListener* TrainStep::listen(StepListener* listener) {
  drop_tapes();  // which keep their listeners
  return std::exchange(listener_, listener);
}

void TrainStep::rehearse(std::span<const corpus::HostBatch> micro_batches) {
  rehearses_ = true;
  forward_backward(micro_batches);
  optimizer_->rehearse();
  runtime_.stream().synchronize();
  rehearses_ = false;
}

StepReport TrainStep::accumulate(std::span<const corpus::HostBatch> micro_batches,
                                 double& divisor) {
  MG_CHECK(!micro_batches.empty(), "a step needs at least one micro-batch");
  forward_backward(micro_batches);
  double counted = 0;
  for (const corpus::HostBatch& batch : micro_batches) counted += batch.counted();
  const auto count = static_cast<int64_t>(micro_batches.size());
  kernels::table(runtime_.stream())
      .fill({.out = totals_.slice(0, count, 1), .value = counted}, runtime_.stream());
  sum_over_samples(totals_, ranks_, runtime_.stream(), "step.totals");
  if (!metrics_.empty()) {
    ranks_.world()
        .all_reduce(metrics_.sums(), comm::Reduce::sum, runtime_.stream(), "step.metrics")
        .wait(runtime_.stream());
    kernels::table(runtime_.stream())
        .copy({.x = metrics_.sums(), .out = sums_.slice(0, count + 1, metrics_.size())},
              runtime_.stream());
  }
  StepReport report{.loss_scale = loss_scale_.value()};
  if (!runtime_.device().has_data()) {
    divisor = 1;
    return report;
  }
  runtime_.stream().synchronize();
  const std::vector<double> sums = to_doubles(sums_);
  const auto totals = std::span(sums).first(sums.size() - static_cast<size_t>(metrics_.size()));
  report.tokens = totals.back();
  report.metrics = metrics_.values(std::span(sums).subspan(totals.size()));
  MG_CHECK(report.tokens > 0,
           "no token of this step counts: the loss mask excludes every label; check the data and "
           "--eod-mask-loss");
  report.loss = std::accumulate(totals.begin(), totals.end() - 1, 0.0) / report.tokens;
  divisor = options_.loss_scope == settings::LossScope::token
                ? report.tokens
                : static_cast<double>(micro_batches.size()) * ranks_.data().size();
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

StepReport TrainStep::run(std::span<const corpus::HostBatch> micro_batches,
                          const optim::StepInputs& inputs) {
  double divisor = 1;
  StepReport report = accumulate(micro_batches, divisor);
  {
    const TimedPart part(listener_, StepPart::norm);
    work_reporter_.phase("gradient norm");
    const Timed timed(*this, times_.norm, 1);
    optimizer_->find_norm(divisor);
    if (runtime_.device().has_data()) {
      report.gradient_norm = read_scalar(optimizer_->gradient_norm(), runtime_.stream());
      report.outcome = outcome(report.loss, report.gradient_norm);
    }
  }
  loss_scale_.after_step(!report.updated());
  if (report.updated()) {
    const TimedPart part(listener_, StepPart::update);
    work_reporter_.phase("update");
    const Timed timed(*this, times_.update, 1);
    optimizer_->update(inputs);
    states_.update_step();
    data_parallel_.parameters_changed();
  }
  report.times = times_;
  return report;
}

double LossSum::mean() const {
  MG_CHECK(tokens > 0,
           "no token of the evaluated samples counts: the loss mask excludes every "
           "label");
  return sum / tokens;
}

}  // namespace megatron::training
