#include "training/run_reporter.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "plan/flops.h"
#include "report/log/console.h"
#include "tensor/finite.h"
#include "training/plan/make_plan.h"

namespace megatron::training {

RunReporter::RunReporter(const RunPlan& plan, double peak, double begin, const RunCounts& counts,
                         const TrainedModel& model, comm::Group& world)
    : plan_(plan),
      s_(plan.settings),
      peak_(peak),
      sequence_flops_(sequence_flops(s_, plan_.model)),
      counts_(counts),
      model_(model),
      world_(world),
      begin_(begin),
      loop_begin_(begin),
      line_times_(s_.log.timing_log_level),
      point_times_(s_.log.timing_log_level) {}

// Before the first step, logs the space that checkpoints will take, or that none will be saved.
void RunReporter::announce_saves(const std::optional<resume::SaveSpace>& space) const {
  if (!space) {
    log::info(
        "--save is not given: no checkpoint is written, and the trained weights are lost at the "
        "end");
    return;
  }
  if (space->fits()) log::info("{}", space->text());
  else log::warning("{}", space->text());
}

void RunReporter::open(std::FILE* lines) {
  loop_begin_ = now_seconds();
  if (!tells()) return;
  const int64_t first = plan_.first_iteration();
  progress_.emplace("training", *s_.batch.train_iters, "steps", first);
  log_.emplace(s_.log, s_.checkpoint.save.value_or(""), run_record(), &*progress_, lines);
  open_progress_file();
  for (const resume::SettingChange& change : plan_.changes) log_->note(first, false, change.text());
}

report::RunRecord RunReporter::run_record() const {
  settings::TrainSettings now = s_, plain;
  now.batch.train_iters = s_.batch.base_iters;
  report::RunRecord record{.iteration = plan_.first_iteration(),
                           .flags = changed(now.fields(), plain.fields()),
                           .model = plan_.model->describe(),
                           .layout = resume::layout_of(s_, plan_.model->num_layers()),
                           .parameters = plan_.model->parameter_count(),
                           .threads = s_.runtime.threads_per_rank(),
                           .train_iters = *s_.batch.train_iters,
                           .seq_length = tokens_per_sample(),
                           .consumed_tokens = counts_.consumed * tokens_per_sample()};
  record.device = to_string(model_.runtime.device());
  record.precision = name(s_.precision.type());
  record.flop_formula = plan::kModelFlops;
  record.peak_flops = peak_;
  return record;
}

int64_t RunReporter::tokens_per_sample() const {
  return s_.batch.tokens_per_sample(plan_.model->facts().encoder_layers > 0);
}

// Totals up to now.
report::RunTotals RunReporter::totals() const {
  report::RunTotals all = totals_;
  all.seconds = now_seconds() - loop_begin_;
  return all;
}

void RunReporter::step(const IterationReport& report) {
  take_times(report);
  if (!tells()) return;
  ++totals_.steps;
  totals_.tokens += report.batch * tokens_per_sample();
  totals_.flops += flops(report.batch);
  totals_.step_seconds += report.seconds;
  const report::StepRecord record = record_of(report);
  save_wait_ = 0;
  log_->step(record);
  progress_->update(report.iteration,
                    fmt::format("loss {:.4f} | {} tokens/s", unsigned_nan(report.loss),
                                format_count(record.tokens_per_second)));
}

report::StepRecord RunReporter::record_of(const IterationReport& report) {
  const double samples = static_cast<double>(report.batch);
  const double flops = this->flops(report.batch);
  const double whole = report.seconds + save_wait_;
  report::StepRecord record{
      .iteration = report.iteration,
      .consumed_samples = report.consumed,
      .consumed_tokens = report.consumed * tokens_per_sample(),
      .loss = report.loss,
      .learning_rate = report.learning_rate,
      .gradient_norm = report.gradient_norm,
      .weight_decay = report.weight_decay,
      .loss_scale = report.loss_scale,
      .skipped = report.outcome == StepOutcome::updated ? 0 : 1,
      .global_batch_size = report.batch,
      .seconds = report.seconds,
      .tokens_per_second = samples * static_cast<double>(tokens_per_sample()) / report.seconds,
      .overall_tokens_per_second = totals().overall_tokens_per_second(),
      .flops_per_second = flops / report.seconds,
      .peak_share = peak_ > 0 ? flops / report.seconds / peak_ : -1,
      .data_wait = report.data_wait / report.seconds,
      .communication_wait = report.communication_wait / report.seconds,
      .save_wait = save_wait_ / whole};
  if (s_.log.log_params_norm) record.parameter_norm = report.parameter_norm;
  record.zero_gradients = report.zero_gradients;
  record.metrics = report.metrics;
  record.timers = line_figures_;
  record.timer_points = point_figures_;
  record.timing_option = s_.log.timing_log_option;
  const auto done = static_cast<double>(report.iteration - plan_.first_iteration());
  record.seconds_left = (now_seconds() - begin_) / done *
                        static_cast<double>(*s_.batch.train_iters - report.iteration);
  for (int i = 0; i < kMemoryClasses; ++i) {
    const auto c = static_cast<MemoryClass>(i);
    record.memory[static_cast<size_t>(i)] =
        model_.runtime.arena(c).high_water() + model_.step.own_memory(c);
  }
  return record;
}

double RunReporter::flops(int64_t samples) const {
  return sequence_flops_ * static_cast<double>(samples);
}

// Collective if the step has a log line or a TensorBoard point.
void RunReporter::take_times(const IterationReport& report) {
  line_figures_.clear();
  point_figures_.clear();
  if (s_.log.timing_log_level == 0) return;
  const int64_t i = report.iteration;
  line_times_.add(report.times, report.data_wait);
  if (s_.log.has_line(i, *s_.batch.train_iters))
    line_figures_ = line_times_.take(world_, model_.runtime.stream());
  if (!s_.log.log_timers_to_tensorboard) return;
  point_times_.add(report.times, report.data_wait);
  if (s_.log.has_point(i)) point_figures_ = point_times_.take(world_, model_.runtime.stream());
}

void RunReporter::open_progress_file() {
  if (!s_.log.log_progress || !s_.checkpoint.save) return;
  try {
    progress_file_.emplace(*s_.checkpoint.save, world_.size(), flops(counts_.consumed));
  } catch (const Error& error) {
    fail("--log-progress: {}", error.what());
  }
}

// If writing fails, the file is reported once and not written again.
void RunReporter::tell_progress(int64_t iteration) {
  const auto saved = saved_samples_.find(iteration);
  if (!progress_file_ || saved == saved_samples_.end()) return;
  const int64_t samples = saved->second;
  saved_samples_.erase(saved);
  try {
    progress_file_->saved(iteration, flops(samples),
                          static_cast<double>(samples * tokens_per_sample()));
  } catch (const Error& error) {
    progress_file_.reset();
    log::warning(
        "the file of --log-progress cannot be written any more and ends here; the run continues: "
        "{}",
        error.what());
  }
}

void RunReporter::evaluated(int64_t iteration, const std::string& set, const LossSum& sum,
                            std::span<const std::string> metrics) {
  if (!tells()) return;
  report::ValidationRecord record{
      .iteration = iteration, .set = set, .loss = sum.mean(), .tokens = sum.tokens};
  const auto objective = plan_.task == nullptr ? nullptr : plan_.task->objective(plan_.model);
  record.of_objective = objective != nullptr && !metrics.empty();
  for (size_t i = 0; i < std::min(metrics.size(), sum.metrics.size()); ++i)
    record.metrics.push_back(
        {metrics[i], sum.metrics[i].sum / std::max(sum.metrics[i].weight, 1.0)});
  log_->validation(record);
}

void RunReporter::warn(int64_t iteration, const std::string& text) {
  if (!tells()) return;
  log::warning("{}", text);
  log_->note(iteration, true, text);
}

void RunReporter::save_begins(int64_t iteration) {
  if (progress_file_) saved_samples_[iteration] = counts_.consumed;
}

void RunReporter::save_took(double seconds) {
  save_wait_ += seconds;
  totals_.save_seconds += seconds;
}

std::string RunReporter::saved(const std::vector<report::SaveRecord>& records) {
  if (!tells() || records.empty()) return "";
  for (const report::SaveRecord& record : records) {
    log_->save(record);
    tell_progress(record.iteration);
    log::info("saved iteration {} to {} ({} in {:.2f} s; training was blocked for {:.2f} s)",
              record.iteration, record.path, format_bytes(static_cast<double>(record.bytes)),
              record.seconds, record.wait);
  }
  return records.back().path;
}

void RunReporter::end(int64_t last, report::EndReason reason, const std::string& error) {
  if (log_) log_->end(last, reason, error, totals());
  if (!tells() || reason == report::EndReason::error) return;
  progress_->finish();
  if (totals_.steps > 0) log::info("{}", report::closing_line(totals(), run_record()));
}

}  // namespace megatron::training
