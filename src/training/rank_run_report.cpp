// What a rank's run logs of itself, and of the model between the steps.
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "plan/flops.h"
#include "plan/parameters.h"
#include "report/log/console.h"
#include "report/log/machine.h"
#include "tensor/finite.h"
#include "training/rank_run.h"
#include "training/sample_text.h"
#include "training/whole_on_one.h"

namespace megatron::training {

report::RunRecord RankRun::run_record() const {
  settings::TrainSettings now = s_, plain;
  now.batch.train_iters = s_.batch.base_iters;
  report::RunRecord record{.iteration = plan_.first_iteration(),
                           .flags = changed(now.fields(), plain.fields()),
                           .model = plan_.model->describe(),
                           .layout = resume::layout_of(s_, plan_.model->num_layers()),
                           .parameters = plan_.model->parameter_count(),
                           .threads = s_.runtime.threads_per_rank(),
                           .train_iters = *s_.batch.train_iters,
                           .seq_length = *s_.batch.seq_length,
                           .consumed_tokens = consumed_ * *s_.batch.seq_length};
  record.device = to_string(runtime_.device());
  record.precision = name(s_.precision.type());
  record.flop_formula = plan::kModelFlops;
  record.peak_flops = peak_;
  return record;
}

// Up to now.
report::RunTotals RankRun::totals() const {
  report::RunTotals all = totals_;
  all.seconds = now_seconds() - loop_begin_;
  return all;
}

void RankRun::tell_totals() const {
  if (lead() && totals_.steps > 0) log::info("{}", report::closing_line(totals(), run_record()));
}

void RankRun::tell(const IterationReport& report) {
  result_.iterations.push_back(report);
  const double samples = static_cast<double>(report.batch);
  const double flops = this->flops(report.batch);
  const double whole = report.seconds + save_wait_;
  ++totals_.steps;
  totals_.tokens += report.batch * *s_.batch.seq_length;
  totals_.flops += flops;
  totals_.step_seconds += report.seconds;
  report::StepRecord record{
      .iteration = report.iteration,
      .consumed_samples = report.consumed,
      .consumed_tokens = report.consumed * *s_.batch.seq_length,
      .loss = report.loss,
      .learning_rate = report.learning_rate,
      .gradient_norm = report.gradient_norm,
      .weight_decay = report.weight_decay,
      .loss_scale = report.loss_scale,
      .skipped = report.outcome == StepOutcome::updated ? 0 : 1,
      .global_batch_size = report.batch,
      .seconds = report.seconds,
      .tokens_per_second = samples * static_cast<double>(*s_.batch.seq_length) / report.seconds,
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
        runtime_.arena(c).high_water() + model_.step.own_memory(c);
  }
  save_wait_ = 0;
  log_->step(record);
  progress_->update(report.iteration,
                    fmt::format("loss {:.4f} | {} tokens/s", unsigned_nan(report.loss),
                                format_count(record.tokens_per_second)));
}

double RankRun::flops(int64_t samples) const {
  return plan_.model->training_flops(*s_.batch.seq_length) * static_cast<double>(samples);
}

// Collective where the step has a log line or a point of TensorBoard.
void RankRun::take_times(const IterationReport& report) {
  line_figures_.clear();
  point_figures_.clear();
  if (s_.log.timing_log_level == 0) return;
  const int64_t i = report.iteration;
  line_times_.add(report.times, report.data_wait);
  if (s_.log.has_line(i, *s_.batch.train_iters))
    line_figures_ = line_times_.take(world_, runtime_.stream());
  if (!s_.log.log_timers_to_tensorboard) return;
  point_times_.add(report.times, report.data_wait);
  if (s_.log.has_point(i)) point_figures_ = point_times_.take(world_, runtime_.stream());
}

void RankRun::begin_progress_file() {
  if (!s_.log.log_progress || !s_.checkpoint.save) return;
  try {
    progress_file_.emplace(*s_.checkpoint.save, world_.size(), flops(consumed_));
  } catch (const Error& error) {
    fail("--log-progress: {}", error.what());
  }
}

// A file that fails is reported once, and not written from then on.
void RankRun::tell_progress(int64_t iteration) {
  const auto saved = saved_samples_.find(iteration);
  if (!progress_file_ || saved == saved_samples_.end()) return;
  const int64_t samples = saved->second;
  saved_samples_.erase(saved);
  try {
    progress_file_->saved(iteration, flops(samples),
                          static_cast<double>(samples * *s_.batch.seq_length));
  } catch (const Error& error) {
    progress_file_.reset();
    log::warning("the file of --log-progress ends here, the run continues: {}", error.what());
  }
}

// One evaluation's share of a set, as far as that goes, or all of it; `first` is its first sample.
LossSum RankRun::evaluate_set(const data::Dataset& set, int64_t first) {
  const int64_t micro_batch = s_.eval_micro_batch(), length = *s_.batch.seq_length;
  if (s_.run.full_validation) return evaluate_all(model_.loss_pass, set, micro_batch, length);
  const int64_t count = std::min(s_.run.eval_iters * s_.eval_batch(), set.size() - first);
  return evaluate(model_.loss_pass, set, first, count, micro_batch, length);
}

void RankRun::tell_evaluated(int64_t iteration, const std::string& set, const LossSum& sum) {
  if (!lead()) return;
  log_->validation({.iteration = iteration, .set = set, .loss = sum.mean(), .tokens = sum.tokens});
}

void RankRun::validate(int64_t iteration) {
  const Profile::Scope part = profile_.scope(Track::step, "validation");
  model_.loss_pass.begin("validation");
  const double begin = now_seconds();
  const int64_t before = s_.run.skip_train ? 0 : s_.run.evaluations_before(iteration);
  for (const corpus::NamedSet& set : plan_.corpus.validation) {
    const LossSum sum = evaluate_set(*set.set, before * s_.run.eval_iters * s_.eval_batch());
    result_.validation_loss = sum.mean();
    tell_evaluated(iteration, s_.run.multiple_validation_sets ? set.name : "valid", sum);
  }
  totals_.evaluation_seconds += now_seconds() - begin;
}

void RankRun::test(int64_t iteration) {
  model_.loss_pass.begin("test");
  const double begin = now_seconds();
  const auto& set = plan_.corpus.sets[static_cast<size_t>(data::Split::test)];
  if (set != nullptr && set->size() > 0) tell_evaluated(iteration, "test", evaluate_set(*set, 0));
  totals_.evaluation_seconds += now_seconds() - begin;
}

void RankRun::finish_profile() {
  Json::Array command;
  for (const std::string& argument : report::command_line())
    command.emplace_back(report::readable(argument));
  const std::string summary = profile_.finish({{"rank", world_.rank()},
                                               {"ranks", world_.size()},
                                               {"model", plan_.model->describe()},
                                               {"precision", name(s_.precision.type())},
                                               {"threads", runtime_.pool().size()},
                                               {"version", version()},
                                               {"command", std::move(command)}});
  if (!summary.empty()) log::info("{}", summary);
}

void RankRun::tell_recorded() const {
  if (!lead() || !s_.graphs.record_after(s_.parallel) || runtime_.device().kind != DeviceKind::cuda)
    return;
  log::info("CUDA graphs: {} captured, {} micro-batches replayed", result_.recorded.recorded,
            result_.recorded.replayed);
}

void RankRun::write_samples(int64_t iteration) {
  model_.step.work_reporter().long_phase("samples");
  on_first_rank(model_, plan_.model, s_.precision.type(), world_, [&](const models::Stage& whole) {
    for (const std::string& prompt : s_.run.sample_prompt)
      log_->sample({iteration, prompt,
                    sample_text(whole, runtime_, *plan_.vocabulary.tokenizer, prompt,
                                s_.run.sample_tokens, plan_.end_tokens)});
  });
  world_.barrier("sample.end");
}

void RankRun::tell_saved(const std::vector<report::SaveRecord>& records) {
  if (!lead()) return;
  for (const report::SaveRecord& record : records) {
    result_.saved = record.path;
    log_->save(record);
    tell_progress(record.iteration);
    log::info("saved iteration {} to {} ({} in {:.2f} s; training was blocked for {:.2f} s)",
              record.iteration, record.path, format_bytes(static_cast<double>(record.bytes)),
              record.seconds, record.wait);
  }
}

}  // namespace megatron::training
