#include "training/micro_batch_pass.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::training {

using models::Edge;
using parallel::Payload;

MicroBatchPass::MicroBatchPass(std::span<models::Stage* const> chunks, DType type,
                               const parallel::Ranks& ranks, Runtime& runtime,
                               const PassPartners& partners)
    : chunks_(chunks.begin(), chunks.end()),
      type_(type),
      ranks_(ranks),
      tensor_(ranks.tensor()),
      runtime_(runtime),
      with_(partners) {
  // An objective is computed on the host, between forward and backward.
  if (!with_.options.record_after || with_.options.objective != nullptr ||
      runtime.stream().target().kind != DeviceKind::cuda)
    return;
  const parallel::ModelRanks shared = ranks.modules();
  std::vector<comm::Group*> within = {tensor_.group, shared.context, shared.context_inner,
                                      shared.context_ring},
                            async = {tensor_.async, shared.context_async,
                                     shared.context_ring_async};
  for (std::vector<comm::Group*>* groups : {&within, &async}) std::erase(*groups, nullptr);
  MG_CHECK(!runtime.device().has_data() || std::ranges::all_of(within, &comm::Group::queued),
           "--cuda-graph-impl local cannot capture communication of tensor-parallel or "
           "context-parallel ranks through host memory: give each rank its own GPU, for NCCL, or "
           "leave the flag out");
  std::vector<Parameter*> parameters;
  for (const models::Stage* chunk : chunks_)
    for (parallel::ParameterSpec* placed : chunk->parameters())
      parameters.push_back(&placed->parameter);
  graphs_.emplace(
      StepGraphs::Runners{std::move(parameters), with_.data_parallel, *with_.options.record_after,
                          std::move(within), std::move(async)},
      ranks.stages() != nullptr, runtime);
}

// Also makes places for the largest number of micro-batches that are between forward and backward
// at the same time.
void MicroBatchPass::begin_step(std::span<const corpus::HostBatch> micro_batches, double loss_scale,
                                int stage, bool rehearses) {
  batches_ = micro_batches;
  loss_scale_ = loss_scale;
  rehearses_ = rehearses;
  const parallel::Schedule schedule =
      ranks_.pipeline().schedule(stage, static_cast<int>(batches_.size()));
  const auto live = static_cast<size_t>(parallel::live_micro_batches(schedule));
  // An objective's losses by source are computed on the host.
  const int64_t sources =
      with_.options.objective == nullptr ? std::ssize(with_.options.sources) : 0;
  while (in_flight_.size() < live) {
    in_flight_.push_back(
        {.batch = corpus::DeviceBatch(runtime_, type_, sources, graphs_.has_value())});
    if (graphs_) in_flight_.back().graph = graphs_->make_slot();
  }
  for (InFlight& slot : in_flight_) {
    slot.taken = false;
    if (slot.graph != nullptr) slot.graph->runner.begin_step();
  }
  places_.assign(chunks_.size() * batches_.size(), 0);
}

void MicroBatchPass::drop() {
  for (InFlight& slot : in_flight_)
    if (slot.graph != nullptr) slot.graph->runner.drop();
  drop_tapes();
}

void MicroBatchPass::drop_tapes() {
  for (InFlight& slot : in_flight_) {
    slot.pass.reset();
    slot.tape.reset();
  }
}

StepListener* MicroBatchPass::listen(StepListener* listener) {
  drop_tapes();  // existing tapes would keep the previous listener
  return std::exchange(listener_, listener);
}

// Data-parallel ranks may overlap communication with compute in the first and last micro-batches of
// the step, which then cannot be captured.
bool MicroBatchPass::recordable(int micro_batch) const {
  const StepOptions& options = with_.options;
  if (rehearses_ || options.timing_level >= 2 || listener_ != nullptr || options.spans != nullptr ||
      options.table != nullptr || runtime_.stream().watcher() != nullptr)
    return false;
  if (ranks_.replicas().size() == 1) return true;
  const bool first = micro_batch == 0, last = micro_batch + 1 == static_cast<int>(batches_.size());
  return !(first && options.data_parallel.overlap_gather) &&
         !(last && options.data_parallel.overlap_reduce);
}

RecordedCounts MicroBatchPass::recorded() const {
  RecordedCounts counts;
  for (const InFlight& slot : in_flight_) {
    if (slot.graph == nullptr) continue;
    counts.recorded += slot.graph->runner.counts().recorded;
    counts.replayed += slot.graph->runner.counts().replayed;
  }
  return counts;
}

int64_t MicroBatchPass::own_memory(MemoryClass memory_class) const {
  if (!graphs_) return 0;
  int64_t bytes = graphs_->backward_memory(memory_class);
  for (const InFlight& slot : in_flight_) bytes += slot.graph->own_memory(memory_class);
  return bytes;
}

int64_t MicroBatchPass::most_own_memory(MemoryClass memory_class) const {
  if (!graphs_) return 0;
  int64_t most = 0;
  for (const InFlight& slot : in_flight_)
    most = std::max(most, slot.graph->own_memory(memory_class));
  return most * static_cast<int64_t>(in_flight_.size()) + graphs_->backward_memory(memory_class);
}

size_t& MicroBatchPass::place_of(int chunk, int micro_batch) {
  return places_[static_cast<size_t>(chunk) * batches_.size() + static_cast<size_t>(micro_batch)];
}

// Weights of the auxiliary losses, by sequence. These losses are means over tokens, but a step's
// sum is divided by the objective's counted(): each sequence's count is divided among its tokens,
// so that results do not depend on how sequences are grouped.
std::vector<double> MicroBatchPass::auxiliary_weights(const Objective& objective,
                                                      const corpus::HostBatch& batch) {
  std::vector<double> weights;
  for (int64_t i = 0; i < batch.layout.sequences; ++i) {
    const corpus::HostBatch one = corpus::sequence_of(batch, i);
    weights.push_back(objective.counted(one) / std::max(one.counted(), 1.0));
  }
  return weights;
}

// Returns the first free place, so that every step does the same, filled with the micro-batch's
// data.
MicroBatchPass::InFlight& MicroBatchPass::take_place(const parallel::Action& action) {
  const auto free = std::ranges::find(in_flight_, false, &InFlight::taken);
  MG_ASSERT(free != in_flight_.end());
  free->taken = true;
  place_of(action.chunk, action.micro_batch) = static_cast<size_t>(free - in_flight_.begin());
  const corpus::HostBatch& host = batches_[static_cast<size_t>(action.micro_batch)];
  const Objective* objective = with_.options.objective.get();
  free->filled =
      &free->batch.fill(host, stage(action.chunk).model(), with_.options.loss_scope, loss_scale_,
                        objective == nullptr || !runtime_.device().has_data()
                            ? std::vector<double>()
                            : auxiliary_weights(*objective, host.whole()));
  return *free;
}

double MicroBatchPass::counted(const corpus::HostBatch& batch) const {
  const Objective* objective = with_.options.objective.get();
  if (objective == nullptr) return batch.counted();
  return leads_context(ranks_) ? objective->counted(batch.whole()) : 0;
}

void MicroBatchPass::make_tape(InFlight& slot) {
  slot.tape = std::make_unique<Tape>(runtime_, Tape::Mode::record, with_.options.table);
  slot.tape->listen(slot.graph ? static_cast<GradientListener*>(&slot.graph->runner)
                               : &with_.data_parallel);
  slot.tape->collect(&with_.totals.metrics());
  slot.tape->listen(static_cast<SpanListener*>(&with_.reporter));
  slot.tape->listen(static_cast<SpanListener*>(&with_.data_parallel));
  if (with_.options.spans != nullptr) slot.tape->listen(with_.options.spans);
  if (listener_ != nullptr) slot.tape->listen(static_cast<SpanListener*>(listener_));
}

StepGraphs::Pass MicroBatchPass::graph_pass(InFlight& slot, const parallel::Action& action,
                                            bool sends) const {
  const int micro_batch = action.micro_batch;
  return {.slot = *slot.graph,
          .batch = *slot.filled,
          .work = {.chunk = action.chunk, .first = micro_batch == 0},
          .recordable = recordable(micro_batch),
          .sends = sends,
          .entry = forms(action.chunk, micro_batch, Edge::entry),
          .exit = forms(action.chunk, micro_batch, Edge::exit),
          .message = [this](std::span<const models::TensorForm> forms,
                            std::string_view label) { return message(forms, label); },
          .total = with_.totals.loss(micro_batch),
          .make = {}};
}

Payload MicroBatchPass::forward(const parallel::Action& action, const Payload& input) {
  action_ = action;
  with_.reporter.phase("forward", action.micro_batch);
  const StepTimer::Block timed(with_.timer, &report::StepTimes::forward, 2);
  if (ranks_.pipeline().parts > 1) return forward_part(action, input);
  InFlight& slot = take_place(action);
  if (!graphs_) return forward_of(slot, action, input);
  StepGraphs::Pass pass = graph_pass(slot, action, !stage(action.chunk).part().head);
  pass.make = [&](const Payload& in) { return forward_of(slot, action, in); };
  return graphs_->forward(pass, input);
}

Payload MicroBatchPass::forward_of(InFlight& slot, const parallel::Action& action,
                                   const Payload& input) {
  const Bundle in = input_of(slot, action, input);
  return output_of(
      slot, action,
      models::forward(stage(action.chunk), *slot.tape, in, *slot.filled, models::Phase::train,
                      with_.options.recompute, with_.options.offload));
}

bool MicroBatchPass::trains_before(int chunk) const {
  return ranks_.pipeline().virtual_stage(ranks_.stage(), chunk) >
         with_.options.pipeline.first_trained;
}

Bundle MicroBatchPass::input_of(InFlight& slot, const parallel::Action& action,
                                const Payload& input) {
  if (slot.tape == nullptr) make_tape(slot);
  const bool trains = trains_before(action.chunk);
  slot.inputs.clear();
  for (const Tensor& tensor : input)
    slot.inputs.push_back(trains ? slot.tape->leaf(tensor) : Var(tensor));
  const Bundle in = models::entering(stage(action.chunk), slot.inputs);
  for (Var& var : slot.inputs) var.value = {};  // nodes that read the value keep it alive
  return in;
}

// Returns the output for the next virtual stage; for the last stage, adds the loss to the totals.
Payload MicroBatchPass::output_of(InFlight& slot, const parallel::Action& action,
                                  const Bundle& out) {
  const models::Stage& chunk = stage(action.chunk);
  if (!chunk.part().head) {
    slot.outputs = models::leaving(chunk, *slot.tape, out);
    Payload sent;  // backward needs only the gradients
    for (Var& var : slot.outputs) sent.push_back(std::exchange(var.value, {}));
    return sent;
  }
  if (with_.options.objective != nullptr) {
    apply_objective(slot, action, out);
    return {};
  }
  Tensor entropies;
  if (with_.options.log_entropy)
    slot.batch.list_labelled(batches_[static_cast<size_t>(action.micro_batch)]);
  const Tensor loss = models::head_loss(chunk, *slot.tape, out, *slot.filled,
                                        with_.options.log_entropy ? &entropies : nullptr);
  report_entropy(slot, entropies);
  const bool records = StepGraphs::records(slot.graph.get()),
             weighted = weighs_losses(batches_[static_cast<size_t>(action.micro_batch)],
                                      with_.options.loss_scope);
  kernels::table(runtime_.stream())
      .sum({.x = loss,
            .weights = weighted ? slot.filled->loss_weights : Tensor(),
            .out = records ? graphs_->loss() : with_.totals.loss(action.micro_batch)},
           runtime_.stream());
  report_sources(slot, loss);
  return {};
}

void MicroBatchPass::report_entropy(InFlight& slot, const Tensor& entropies) const {
  if (!entropies.defined()) return;
  const Tensor ones = slot.tape->empty(entropies.shape(), entropies.dtype(), "entropy.weights");
  slot.tape->kernels().fill({.out = ones, .value = 1}, slot.tape->stream());
  slot.tape->report(kEntropy, {.values = entropies, .weights = ones});
}

void MicroBatchPass::report_sources(InFlight& slot, const Tensor& loss) const {
  if (!slot.filled->source_weights.defined()) return;
  for (size_t i = 0; i < with_.options.sources.size(); ++i)
    slot.tape->report(
        source_metric(with_.options.sources[i]),
        {.values = loss,
         .weights =
             slot.filled->source_weights.slice(0, static_cast<int64_t>(i), 1).view(loss.shape())});
}

namespace {

// The batch as if no example of another source counted.
corpus::HostBatch of_source(const corpus::HostBatch& batch, size_t source) {
  corpus::HostBatch own = batch;
  for (size_t i = 0; i < own.loss_mask.size(); ++i)
    if (own.sources[i] != static_cast<int32_t>(source)) own.loss_mask[i] = 0;
  return own;
}

}  // namespace

// The mean loss of what counts of each source, as a micro-batch of these examples alone would have
// it.
std::vector<ObjectiveTerms::Metric> MicroBatchPass::losses_by_source(
    const corpus::HostBatch& batch, std::span<const double> values,
    std::span<const std::string> names) const {
  std::vector<ObjectiveTerms::Metric> losses;
  std::vector<double> unused(values.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const corpus::HostBatch own = of_source(batch, i);
    const double counted = with_.options.objective->counted(own);
    losses.push_back({.name = names[i]});
    if (counted == 0) continue;
    std::ranges::fill(unused, 0);
    losses.back().value = with_.options.objective->evaluate(own, values, unused).loss / counted;
    losses.back().weight = counted;
  }
  return losses;
}

// Forward of the head, then the objective's terms and the gradient with which backward begins.
void MicroBatchPass::apply_objective(InFlight& slot, const parallel::Action& action,
                                     const Bundle& out) {
  const corpus::HostBatch& host = batches_[static_cast<size_t>(action.micro_batch)];
  const models::Stage& last = stage(action.chunk);
  if (last.model()->score_labels() == 0)
    slot.batch.list_labelled(host, with_.options.objective->reads_squares());
  Tensor entropies;
  slot.outputs = {models::head_objective_values(last, *slot.tape, out, *slot.filled,
                                                with_.options.log_entropy ? &entropies : nullptr)};
  report_entropy(slot, entropies);
  const Tensor held = std::exchange(slot.outputs[0].value, {});
  slot.gradient = Tensor::empty(runtime_.arena(MemoryClass::activations), held.shape(),
                                held.dtype(), "objective.gradient");
  const std::vector<double> values =
      values_of_sequences(held, host, ranks_.modules().context, runtime_);
  if (!runtime_.device().has_data()) return;
  std::vector<double> gradients(values.size());
  const ObjectiveTerms terms = with_.options.objective->evaluate(host.whole(), values, gradients);
  std::vector<double> gradient = held_gradients(gradients, host);
  for (double& g : gradient) g *= loss_scale_;
  Stream& stream = runtime_.stream();
  copy_from(slot.gradient, std::span<const double>(gradient), stream);
  const double share = leads_context(ranks_) ? 1 : 0;  // sums over ranks count each term once
  kernels::table(stream).fill(
      {.out = with_.totals.loss(action.micro_batch), .value = share * terms.loss}, stream);
  const auto one = [&](double value) {
    Tensor t = slot.tape->empty({1}, DType::f64, "objective.metric");
    copy_from(t, std::span<const double>(&value, 1), stream);
    return t;
  };
  std::vector<std::string> sources;
  for (const std::string& source : with_.options.sources) sources.push_back(source_metric(source));
  std::vector<ObjectiveTerms::Metric> metrics = losses_by_source(host.whole(), values, sources);
  metrics.insert(metrics.end(), terms.metrics.begin(), terms.metrics.end());
  for (const ObjectiveTerms::Metric& metric : metrics)
    slot.tape->report(metric.name,
                      {.values = one(metric.value), .weights = one(share * metric.weight)});
}

// Calls that are in flight when one pass stops are overlapped with the compute of the other.
Payload MicroBatchPass::forward_part(const parallel::Action& action, const Payload& input) {
  InFlight& slot =
      action.begins() ? take_place(action) : in_flight(action.chunk, action.micro_batch);
  if (action.begins()) {
    const Bundle in = input_of(slot, action, input);
    slot.pass.emplace(stage(action.chunk), *slot.tape, in, *slot.filled, models::Phase::train,
                      with_.options.recompute);
  }
  if (!action.ends()) {
    slot.pass->advance();
    return {};
  }
  const Bundle out = slot.pass->finish();
  slot.pass.reset();
  return output_of(slot, action, out);
}

Payload MicroBatchPass::backward_part(const parallel::Action& action, const Payload& gradient) {
  InFlight& slot = in_flight(action.chunk, action.micro_batch);
  if (action.ends()) {
    slot.taken = false;
    return backward_of(slot, action, gradient, true);
  }
  set_gradient(slot, gradient);
  slot.tape->backward_to_stop();
  return {};
}

Payload MicroBatchPass::backward(const parallel::Action& action, const Payload& gradient,
                                 bool weights) {
  action_ = action;
  with_.reporter.phase("backward", action.micro_batch);
  const StepTimer::Block timed(with_.timer, &report::StepTimes::backward, 2);
  if (action.parts > 1) return backward_part(action, gradient);
  InFlight& slot = in_flight(action.chunk, action.micro_batch);
  slot.taken = !weights;
  if (!graphs_) return backward_of(slot, action, gradient, weights);
  const bool sends = ranks_.stages() != nullptr && trains_before(action.chunk);
  StepGraphs::Pass pass = graph_pass(slot, action, sends);
  pass.make = [&](const Payload& of_output) {
    return backward_of(slot, action, of_output, weights);
  };
  return graphs_->backward(pass, gradient);
}

// received: from the next virtual stage, or empty.
void MicroBatchPass::set_gradient(InFlight& slot, const Payload& received) {
  if (slot.gradient.defined()) return slot.tape->set_gradient(slot.outputs[0], slot.gradient);
  for (size_t i = 0; i < received.size(); ++i)
    if (slot.outputs[i].needs_gradient()) slot.tape->set_gradient(slot.outputs[i], received[i]);
}

Payload MicroBatchPass::backward_of(InFlight& slot, const parallel::Action& action,
                                    const Payload& gradient, bool weights) {
  set_gradient(slot, gradient);
  slot.tape->backward(weights ? BackwardPart::all : BackwardPart::input);
  Payload of_input = input_gradient(slot, action);
  if (weights) end(slot);
  return of_input;
}

// Zeros for an input that nothing of the loss depends on.
Payload MicroBatchPass::input_gradient(InFlight& slot, const parallel::Action& action) const {
  Payload gradients, zeros;
  for (size_t i = 0; i < slot.inputs.size() && slot.inputs[i].needs_gradient(); ++i) {
    Tensor gradient = slot.tape->gradient(slot.inputs[i]);
    if (!gradient.defined()) {
      if (zeros.empty())
        zeros = message(forms(action.chunk, action.micro_batch, Edge::entry), "gradient.zero");
      gradient = zeros[i];
      slot.tape->kernels().fill({.out = gradient, .value = 0}, slot.tape->stream());
    }
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

void MicroBatchPass::weight(int chunk, int micro_batch) {
  action_ = {parallel::Action::Kind::weight, chunk, micro_batch};
  with_.reporter.phase("weight gradients", micro_batch);
  const StepTimer::Block timed(with_.timer, &report::StepTimes::backward, 2);
  InFlight& slot = in_flight(chunk, micro_batch);
  slot.taken = false;
  slot.tape->backward(BackwardPart::weight);
  end(slot);
}

void MicroBatchPass::end(InFlight& slot) {
  slot.inputs.clear();
  slot.outputs.clear();
  slot.gradient = {};
  slot.tape->clear();
}

Payload MicroBatchPass::receive_into(int chunk, int micro_batch, bool gradient) {
  return message(forms(chunk, micro_batch, gradient ? Edge::exit : Edge::entry),
                 "pipeline.received");
}

std::vector<models::TensorForm> MicroBatchPass::forms(int chunk, int micro_batch, Edge edge) const {
  return models::boundary_forms(stage(chunk), edge,
                                boundary_rows(batches_[static_cast<size_t>(micro_batch)], tensor_),
                                type_);
}

Payload MicroBatchPass::message(std::span<const models::TensorForm> forms,
                                std::string_view label) const {
  return models::make_payload(forms, runtime_, label);
}

models::BoundaryRows boundary_rows(const corpus::HostBatch& batch,
                                   const parallel::TensorParallel& tensor) {
  return {.tokens = tensor.tokens(batch.layout.rows()).size,
          .of_encoder = tensor.tokens(batch.encoder_rows()).size};
}

}  // namespace megatron::training
