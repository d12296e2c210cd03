#include "training/loss_pass.h"

#include <algorithm>

#include "base/error.h"
#include "corpus/predicted_tokens.h"
#include "models/prediction_names.h"

namespace megatron::training {
namespace {

// Adds the metrics of each sequence, in the order of LossPass::metrics().
void add_predictions(std::span<const models::PredictionLosses> of_depths,
                     const corpus::HostBatch& host, std::span<LossSum> sums) {
  const auto held = static_cast<size_t>(host.layout.held());
  for (size_t k = 0; k < of_depths.size(); ++k) {
    const std::vector<double> losses = to_doubles(of_depths[k].losses),
                              hits = to_doubles(of_depths[k].hits);
    const corpus::HostPredicted labels =
        corpus::predicted_tokens(host, static_cast<int64_t>(k) + 1);
    for (LossSum& sum : sums) sum.metrics.resize(2 * (k + 1));
    for (size_t i = 0; i < losses.size(); ++i) {
      const double count = labels.counts[i];
      LossSum::Metric* const metrics = &sums[i / held].metrics[2 * k];
      metrics[0].sum += count * losses[i];
      metrics[1].sum += count * hits[i];
      for (size_t m = 0; m < 2; ++m) metrics[m].weight += count;
    }
  }
}

}  // namespace

LossPass::LossPass(const EvaluatedModel& model, Runtime& runtime, const StepOptions& options)
    : model_(model),
      work_reporter_(model.ranks->world().doing()),
      runtime_(runtime),
      options_(options),
      pipeline_(model.ranks->pipeline(), model.ranks->stages(), model.ranks->stages_async(),
                runtime, options.pipeline) {}

void LossPass::begin(std::string_view phase) {
  phase_ = phase;
  done_ = 0;
  work_reporter_.long_phase(phase_);
}

void LossPass::run(std::span<const corpus::HostBatch> micro_batches, const OnLosses& on_losses) {
  on_losses_ = &on_losses;
  run_all(micro_batches);
  on_losses_ = nullptr;
}

void LossPass::run_values(std::span<const corpus::HostBatch> micro_batches,
                          const OnValues& on_values) {
  on_values_ = &on_values;
  run_all(micro_batches);
  on_values_ = nullptr;
}

void LossPass::run_all(std::span<const corpus::HostBatch> micro_batches) {
  batches_ = micro_batches;
  device_batch_.emplace(runtime_, model_.type);
  pipeline_.run_forward(static_cast<int>(micro_batches.size()), *this);
  done_ += static_cast<int64_t>(micro_batches.size());
  work_reporter_.long_phase(phase_);  // between passes, no micro-batch is in progress
  device_batch_.reset();
  batches_ = {};
}

parallel::Payload LossPass::forward(const parallel::Action& action,
                                    const parallel::Payload& input) {
  const int chunk = action.chunk, micro_batch = action.micro_batch;
  work_reporter_.long_phase(phase_, done_ + micro_batch);
  const models::Stage& stage = *model_.chunks[static_cast<size_t>(chunk)];
  const nn::Batch& batch = device_batch_->fill(batches_[static_cast<size_t>(micro_batch)],
                                               stage.model(), settings::LossScope::token);
  Tape tape(runtime_, Tape::Mode::infer, options_.table);
  if (!uses_adapters_) tape.leave_out_adapters();
  tape.listen(static_cast<SpanListener*>(&work_reporter_));
  if (model_.parameters != nullptr) tape.listen(model_.parameters);
  const Bundle out =
      models::forward(stage, tape, models::entering(stage, input), batch,
                      on_values_ != nullptr ? models::Phase::evaluate : models::Phase::validate);
  if (!stage.part().head) return models::leaving_values(stage, tape, out);
  const corpus::HostBatch& host = batches_[static_cast<size_t>(micro_batch)];
  if (on_values_ != nullptr)
    (*on_values_)(micro_batch, objective_values(stage, tape, out, host, batch, false));
  else
    (*on_losses_)(micro_batch, options_.objective == nullptr
                                   ? token_losses(stage, tape, out, host, batch)
                                   : objective_losses(stage, tape, out, host, batch));
  return {};
}

// In the order of the tokens.
std::vector<LossSum> LossPass::token_losses(const models::Stage& stage, Tape& tape,
                                            const Bundle& out, const corpus::HostBatch& host,
                                            const nn::Batch& batch) {
  const Tensor loss = models::head_loss(stage, tape, out, batch);
  const auto of_depths = models::head_prediction_losses(stage, tape, out, batch);
  runtime_.stream().synchronize();
  std::vector<LossSum> sums(static_cast<size_t>(host.layout.sequences));
  if (!runtime_.device().has_data()) return sums;
  const std::vector<double> losses = to_doubles(loss);
  const auto held = static_cast<size_t>(host.layout.held());
  for (size_t i = 0; i < losses.size(); ++i) {
    sums[i / held].sum += losses[i] * host.loss_mask[i];
    sums[i / held].tokens += host.loss_mask[i];
  }
  add_predictions(of_depths, host, sums);
  return sums;
}

std::vector<std::string> LossPass::metrics() const {
  if (objective() == nullptr) return models::prediction_metrics(model()->facts().prediction.depths);
  std::vector<std::string> names;
  for (MetricDefinition& metric : objective()->metrics()) names.push_back(std::move(metric.name));
  return names;
}

std::vector<double> LossPass::objective_values(const models::Stage& stage, Tape& tape,
                                               const Bundle& out, const corpus::HostBatch& host,
                                               const nn::Batch& batch, bool squares) {
  if (stage.model()->score_labels() == 0) device_batch_->list_labelled(host, squares);
  const Tensor held = models::head_objective_values(stage, tape, out, batch).value;
  return values_of_sequences(held, host, model_.ranks->modules().context, runtime_);
}

std::vector<LossSum> LossPass::objective_losses(const models::Stage& stage, Tape& tape,
                                                const Bundle& out, const corpus::HostBatch& host,
                                                const nn::Batch& batch) {
  const std::vector<double> values =
      objective_values(stage, tape, out, host, batch, options_.objective->reads_squares());
  std::vector<LossSum> sums(static_cast<size_t>(host.layout.sequences));
  if (!runtime_.device().has_data() || !leads_context(*model_.ranks)) return sums;
  const size_t each = values.size() / sums.size();
  std::vector<double> gradient(each);
  for (size_t i = 0; i < sums.size(); ++i) {
    const corpus::HostBatch one = corpus::sequence_of(host.whole(), static_cast<int64_t>(i));
    std::ranges::fill(gradient, 0.0);
    const ObjectiveTerms terms =
        options_.objective->evaluate(one, std::span(values).subspan(i * each, each), gradient);
    sums[i] = {.sum = terms.loss, .tokens = options_.objective->counted(one)};
    for (const ObjectiveTerms::Metric& metric : terms.metrics)
      sums[i].metrics.push_back({metric.value * metric.weight, metric.weight});
  }
  return sums;
}

size_t LossPass::together() const {
  const int virtual_stages = model_.ranks->pipeline().virtual_stages();
  return virtual_stages == 1 ? 1 : 2 * static_cast<size_t>(virtual_stages);
}

parallel::Payload LossPass::backward(const parallel::Action&, const parallel::Payload&, bool) {
  MG_ASSERT(false);
}
void LossPass::weight(int, int) { MG_ASSERT(false); }

parallel::Payload LossPass::receive_into(int chunk, int micro_batch, bool) {
  const corpus::HostBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  models::BoundaryRows rows = boundary_rows(batch, model_.ranks->tensor());
  rows.predicts = on_values_ == nullptr;
  return models::make_payload(models::boundary_forms(*model_.chunks[static_cast<size_t>(chunk)],
                                                     models::Edge::entry, rows, model_.type),
                              runtime_, "pipeline.received");
}

}  // namespace megatron::training
