#include "training/rank_run.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/values.h"
#include "data/sampler.h"
#include "tensor/finite.h"
#include "training/gradient_zeros.h"
#include "training/non_finite.h"
#include "training/plan/make_plan.h"
#include "training/weights_norm.h"

namespace megatron::training {

RankRun::RankRun(const RunPlan& plan, double peak, comm::Group& world, const TrainHooks& hooks)
    : plan_(plan),
      peak_(peak),
      s_(plan.settings),
      profile_(s_.profile, world),
      world_(profile_.world()),
      hooks_(hooks),
      begin_(now_seconds()),
      runtime_(s_.runtime.device_value(world.rank()), s_.runtime.threads_per_rank(),
               DeviceKind::cpu, s_.runtime.ranks_in_process()),
      model_(plan.model, s_.precision.type(), static_cast<uint64_t>(plan.beginning.state.seed),
             model_layout(s_, plan.model), world_, runtime_, step_options(s_, plan.model)),
      group_(model_.ranks.data()),
      line_times_(s_.log.timing_log_level),
      point_times_(s_.log.timing_log_level),
      consumed_(plan.beginning.state.consumed_samples),
      scheduled_(plan.beginning.state.scheduled_samples),
      skipped_(plan.beginning.state.skipped_steps) {
  s_.runtime.limit_kernels(runtime_.stream());
  gemm_choices_.emplace(s_, plan.beginning, world_, runtime_, files());
  passed_over_ = s_.run.skipped();
  fill_model(plan.beginning);
  if (s_.checkpoint.save)
    checkpointer_.emplace(s_.checkpoint, plan.saved, plan.whole, model_.step, world_, runtime_,
                          files());
}

void RankRun::fill_model(const resume::Beginning& beginning) {
  if (beginning.weights != nullptr) {
    load_weights(beginning);
  } else {
    model_.initialize(static_cast<uint64_t>(s_.runtime.seed));
  }
  model_.step.begin(s_.optimizer.config);
  if (beginning.checkpoint == nullptr || !s_.checkpoint.load_optimizer) return;
  beginning.checkpoint->load_optimizer(held_states(model_.step.optimizer()), plan_.whole.optimizer);
  model_.step.optimizer().resume(beginning.state.optimizer_steps);
  if (beginning.state.loss_scale && model_.step.loss_scale().dynamic())
    model_.step.loss_scale().resume(*beginning.state.loss_scale);
}

// A checkpoint has every state; weights alone may come from where there was none.
void RankRun::load_weights(const resume::Beginning& beginning) {
  if (plan_.upcycled)
    return load_upcycled(*beginning.weights, *plan_.upcycled, model_.step,
                         static_cast<uint64_t>(s_.runtime.seed), runtime_, lead());
  if (plan_.stored_tokens > 0) draw_new_tokens(*beginning.weights);
  std::vector<std::string> absent;
  if (beginning.checkpoint == nullptr) absent = absent_states(plan_.whole, *beginning.weights);
  if (!absent.empty()) {
    nn::initialize(model_.step.states(), static_cast<uint64_t>(s_.runtime.seed), runtime_.stream());
    if (lead()) log::warning("{}", absent_states_text(beginning.weights->path(), absent));
  }
  training::load_weights(*beginning.weights, model_.held(), plan_.whole,
                         {.absent = absent, .tells = lead(), .stored_tokens = plan_.stored_tokens});
}

// All rows of the embedding and the output layer; those of the directory are read over them.
void RankRun::draw_new_tokens(const checkpoint::ModelDirectory& directory) {
  for (const parallel::Shard& shard : model_.step.shards()) {
    const std::string& name = shard.placed->placement.tensors.at(0).name;
    if (name == plan_.whole.table || name == plan_.whole.head)
      parallel::initialize(shard, static_cast<uint64_t>(s_.runtime.seed), runtime_.stream());
  }
  if (!lead()) return;
  log::info(
      "the vocabulary of '{}' grows from {} to {} tokens: the new rows of {}{} begin as in a "
      "new model with --seed {}",
      directory.path(), plan_.stored_tokens, plan_.model->vocab_size(), plan_.whole.table,
      plan_.whole.head.empty() ? "" : " and " + plan_.whole.head, s_.runtime.seed);
}

// What the checkpoints will take, before the first step; or that there will be none.
void RankRun::announce_saves() const {
  if (!checkpointer_) {
    log::info("no --save: no checkpoint is written, and the trained weights are lost at the end");
    return;
  }
  const resume::SaveSpace space =
      checkpointer_->space(plan_.first_iteration(), *s_.batch.train_iters);
  if (space.fits()) log::info("{}", space.text());
  else log::warning("{}", space.text());
}

TrainResult RankRun::loop() {
  if (checkpointer_ && plan_.iterations_left() > 0) checkpointer_->check_room();
  if (lead() && !s_.run.skip_train && plan_.iterations_left() > 0) announce_saves();
  profile_.open(plan_.first_iteration(), s_.run.skip_train ? 0 : *s_.batch.train_iters,
                s_.profile.directory.value_or(s_.checkpoint.save.value_or(".")), files());
  loop_begin_ = now_seconds();
  if (lead()) {
    progress_.emplace("training", *s_.batch.train_iters, "steps", plan_.first_iteration());
    log_.emplace(s_.log, s_.checkpoint.save.value_or(""), run_record(), &*progress_, hooks_.lines);
    begin_progress_file();
  }
  if (lead()) {
    for (const resume::SettingChange& change : plan_.changes)
      log_->note(plan_.first_iteration(), false, change.text());
  }
  result_.first_iteration = plan_.first_iteration();
  int64_t last = plan_.first_iteration();
  try {
    if (s_.run.skip_train) {
      validate(last);
    } else if (plan_.iterations_left() > 0) {
      corpus::Prefetcher data = read_ahead();
      train_on(data);
    } else if (lead()) {
      log::info(
          "the run is already at step {} of {}: nothing is left to do; --extend-to-iters N "
          "continues training to step N",
          last, *s_.batch.train_iters);
    }
    if (result_.end == report::EndReason::done && plan_.evaluates_test_set())
      test(s_.run.skip_train ? last : std::max(last, *s_.batch.train_iters));
  } catch (const std::exception& error) {
    if (!result_.iterations.empty()) last = result_.iterations.back().iteration;
    if (log_) log_->end(last, report::EndReason::error, error.what(), totals());
    throw;
  }
  if (!result_.iterations.empty()) last = result_.iterations.back().iteration;
  finish_profile();
  result_.recorded = model_.step.recorded();
  tell_recorded();
  if (log_) log_->end(last, result_.end, "", totals());
  if (progress_) progress_->finish();
  tell_totals();
  return std::move(result_);
}

// Times the GEMMs of a step, on the data of the first one. If that has one micro-batch, and later
// steps have more, it is taken twice, so that gradients are added, too.
void RankRun::tune_gemms(corpus::Prefetcher& data) {
  if (!gemm_choices_->tunes()) return;
  model_.step.work_reporter().step(plan_.first_iteration() + 1, true);
  read_step(data);
  micro_batches_read_ = true;
  std::vector<corpus::HostBatch> rehearsed = micro_batches_;
  if (rehearsed.size() == 1 &&
      s_.batch.schedule.last() > *s_.batch.micro_batch_size * group_.size())
    rehearsed.push_back(rehearsed[0]);
  gemm_choices_->make([&] { model_.step.rehearse(rehearsed); });
}

void RankRun::train_on(corpus::Prefetcher& data) {
  tune_gemms(data);
  const int64_t iterations = *s_.batch.train_iters;
  for (int64_t i = plan_.first_iteration() + 1; i <= iterations; ++i) {
    // The first step packs and asks for memory.
    model_.step.work_reporter().step(i, i == plan_.first_iteration() + 1);
    profile_.begin(i, model_.step, runtime_.stream());
    if (std::ranges::binary_search(passed_over_, i - 1)) {
      pass_over(data);
    } else {
      const IterationReport report = one_step(i, data);
      take_times(report);
      if (lead()) tell(report);
      run_hook(report);
      if (s_.run.evaluates_after(i)) validate(i);
    }
    const std::optional<report::EndReason> end = finish_iteration(i);
    profile_.end(i, model_.step, runtime_.stream());
    if (!end) continue;
    result_.end = *end;
    return;
  }
}

// Samples, the end of the run where it comes now, and what is saved. Nothing of it after a step
// that was passed over, but for the last.
std::optional<report::EndReason> RankRun::finish_iteration(int64_t i) {
  const bool last = i == *s_.batch.train_iters;
  if (!last && std::ranges::binary_search(passed_over_, i - 1)) return std::nullopt;
  if (s_.run.sample_interval && i % *s_.run.sample_interval == 0) write_samples(i);
  const std::optional<report::EndReason> end = last ? report::EndReason::done : end_after(i);
  const std::optional<int64_t>& interval = s_.checkpoint.save_interval;
  if (checkpointer_ && (end || (interval && i % *interval == 0))) {
    save(i, end.has_value());
  } else if (checkpointer_) {
    tell_saved(checkpointer_->poll(false));
  }
  return end;
}

// While a step runs, the micro-batches of the next one are read.
corpus::Prefetcher RankRun::read_ahead() const {
  const data::Dataset& set = plan_.corpus.set(data::Split::train);
  const data::SamplerShape shape{.total = set.size(),
                                 .consumed = consumed_,
                                 .micro_batch_size = *s_.batch.micro_batch_size,
                                 .rank = group_.rank(),
                                 .size = group_.size()};
  std::unique_ptr<data::Sampler> sampler;
  if (s_.run.dataloader_type == "cyclic") {
    sampler = std::make_unique<data::CyclicSampler>(shape, s_.run.data_sharding);
  } else {
    sampler = std::make_unique<data::SequentialSampler>(shape);
  }
  const int64_t together = shape.micro_batch_size * shape.size;
  return corpus::Prefetcher(set, std::move(sampler), *s_.batch.seq_length,
                            (plan_.last_sample() - consumed_) / together,
                            s_.batch.schedule.last() / together);
}

void RankRun::read_step(corpus::Prefetcher& data) {
  if (std::exchange(micro_batches_read_, false)) return;
  model_.step.work_reporter().phase("data");
  const Profile::Scope part = profile_.scope(Track::data, "wait for data");
  micro_batches_.resize(static_cast<size_t>(s_.batch.schedule.micro_batches(consumed_)));
  for (corpus::HostBatch& micro_batch : micro_batches_) data.next(micro_batch);
}

void RankRun::pass_over(corpus::Prefetcher& data) {
  read_step(data);
  consumed_ += s_.batch.schedule.batch(consumed_);
}

IterationReport RankRun::one_step(int64_t iteration, corpus::Prefetcher& data) {
  const double begin = now_seconds(), waited = data.waited();
  const double communicated = model_.ranks.seconds();
  const CallCounts calls = runtime_.stream().calls();
  const data::BatchSchedule& schedule = s_.batch.schedule;
  Profile::Scope part = profile_.scope(Track::step, "step");
  read_step(data);
  IterationReport report{.iteration = iteration,
                         .batch = schedule.batch(consumed_),
                         .learning_rate = plan_.learning_rate.at(scheduled_),
                         .weight_decay = plan_.weight_decay.at(scheduled_),
                         .data_wait = data.waited() - waited};
  const StepReport step = model_.step.run(
      micro_batches_, {.learning_rate = report.learning_rate,
                       .weight_decay = report.weight_decay,
                       .decoupled_learning_rate = plan_.learning_rate.decoupled_at(scheduled_)});
  consumed_ += report.batch;
  report.consumed = consumed_;
  if (step.updated()) {
    scheduled_ += report.batch;
    skipped_in_row_ = 0;
  } else {
    ++skipped_;
    ++skipped_in_row_;
  }
  report.loss = step.loss;
  report.loss_scale = model_.step.options().loss_scale ? step.loss_scale : 0;
  report.outcome = step.outcome;
  report.metrics = step.metrics;
  report.gradient_norm = step.gradient_norm;
  if (s_.log.log_params_norm)
    report.parameter_norm = weights_norm(model_.shards(), model_.ranks, runtime_);
  const bool logged =
      s_.log.has_line(iteration, *s_.batch.train_iters) || s_.log.has_point(iteration);
  if (s_.log.log_num_zeros_in_grad && logged)
    report.zero_gradients = gradient_zeros(model_.step.shards(), model_.ranks, runtime_);
  report.times = step.times;
  report.calls = runtime_.stream().calls() - calls;
  report.communication_wait = model_.ranks.seconds() - communicated;
  report.seconds = now_seconds() - begin;
  if (part.on())
    part.arguments =
        fmt::format(R"({{"iteration":{},"samples":{},"loss":{},"gradient_norm":{}}})", iteration,
                    report.batch, json_number(step.loss), json_number(step.gradient_norm));
  if (step.outcome == StepOutcome::not_finite) not_finite(report);
  warn_of_skipped(report);
  return report;
}

// A scale that cannot fall would leave out every step and say so in a number alone.
void RankRun::warn_of_skipped(const IterationReport& report) {
  constexpr int64_t kMany = 50;  // 2^32 falls to 1 in 33 steps
  if (!lead() || !model_.step.options().loss_scale || skipped_in_row_ != kMany) return;
  const std::string text = fmt::format(
      "the last {} steps were all skipped, at a loss scale of {}: nothing is being learned. "
      "Lower --loss-scale or --min-loss-scale, or --lr, or train with --bf16",
      kMany, report.loss_scale);
  log::warning("{}", text);
  log_->note(report.iteration, true, text);
}

// The weights and the optimizer are as they were before the step. What was reported once is not looked
// for again.
void RankRun::not_finite(const IterationReport& report) {
  const bool stop = s_.precision.on_non_finite == settings::OnNonFinite::stop;
  const std::string what =
      fmt::format("iteration {}: the loss is {} and the gradient norm {}", report.iteration,
                  unsigned_nan(report.loss), unsigned_nan(report.gradient_norm));
  std::string found;
  if (!not_finite_reported_)
    found = first_non_finite(model_.step, micro_batches_, world_, runtime_);
  not_finite_reported_ = true;
  MG_CHECK(!stop,
           "{}. First: {}. The step was skipped and nothing was saved after it; lower --lr, "
           "check the data, or skip such steps with --on-non-finite skip",
           what, found);
  if (!lead()) return;
  const std::string text =
      fmt::format("{}; the step is skipped{}", what,
                  found.empty() ? fmt::format(" ({} so far)", skipped_) : ". First: " + found);
  log::warning("{}", text);
  log_->note(report.iteration, true, text);
}

// The other ranks stand still meanwhile.
void RankRun::run_hook(const IterationReport& report) {
  if (!hooks_.after_step) return;
  group_.barrier("hook.begin");
  if (lead()) hooks_.after_step(report);
  group_.barrier("hook.end");
}

void RankRun::save(int64_t iteration, bool last) {
  const Profile::Scope part = profile_.scope(Track::step, "save");
  model_.step.work_reporter().long_phase("save");
  const double begin = now_seconds();
  if (progress_file_) saved_samples_[iteration] = consumed_;
  tell_saved(checkpointer_->save(state(iteration), last));
  const double seconds = now_seconds() - begin;
  save_wait_ += seconds;
  totals_.save_seconds += seconds;
}

// Why the run ends after this step, before its last; the same on all ranks.
std::optional<report::EndReason> RankRun::end_after(int64_t iteration) {
  const settings::CheckpointSettings& c = s_.checkpoint;
  if (c.exit_signal_handler || c.exit_duration_in_mins) {
    const int signal = hooks_.signals == nullptr ? 0 : hooks_.signals->caught().value_or(0);
    const bool late =
        c.exit_duration_in_mins && now_seconds() - plan_.began > 60 * *c.exit_duration_in_mins;
    std::array anywhere = {static_cast<double>(signal), late ? 1.0 : 0.0};
    comm::largest(world_, runtime_.stream(), anywhere, "end");
    result_.signal = static_cast<int>(anywhere[0]);
    if (result_.signal != 0) return report::EndReason::signal;
    if (anywhere[1] != 0) return report::EndReason::exit_duration;
  }
  if (c.exit_interval && iteration % *c.exit_interval == 0) return report::EndReason::exit_interval;
  return std::nullopt;
}

resume::TrainerState RankRun::state(int64_t iteration) {
  return {.iteration = iteration,
          .consumed_samples = consumed_,
          .scheduled_samples = scheduled_,
          .skipped_steps = skipped_,
          .seed = plan_.beginning.state.seed,
          .precision = std::string(name(s_.precision.type())),
          .optimizer = std::string(optim::name(s_.optimizer.config.method)),
          .optimizer_steps = model_.step.optimizer().steps(),
          .has_optimizer = s_.checkpoint.save_optimizer,
          .optimizer_settings = resume::optimizer_settings(s_.optimizer),
          .settings = resume::result_settings(s_, plan_.model),
          .loss_scale = model_.step.loss_scale().dynamic()
                            ? std::optional(model_.step.loss_scale().state())
                            : std::nullopt,
          .learning_rate = plan_.learning_rate,
          .weight_decay = plan_.weight_decay,
          .data = resume::data_settings(s_, plan_.train_samples),
          .train_iters = s_.batch.base_iters,
          .layout = resume::layout_of(s_, plan_.model->num_layers()),
          .gemm_tuning = gemm_choices_->json()};
}

}  // namespace megatron::training
