#include "training/rank_run.h"

#include <array>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/values.h"
#include "data/sampler.h"
#include "training/flops.h"

namespace megatron::training {

RankRun::RankRun(const RunPlan& plan, double peak, comm::Group& world, const TrainHooks& hooks)
    : plan_(plan),
      peak_(peak),
      s_(plan.settings),
      world_(world),
      mesh_(parallel::Mesh::build(s_.runtime.layout(), world)),
      group_(mesh_.group({parallel::Axis::dp, parallel::Axis::cp})),
      hooks_(hooks),
      begin_(now_seconds()),
      runtime_(s_.runtime.device_value(), s_.runtime.threads_per_rank()),
      model_(plan.config, runtime_, s_.precision.type(),
             static_cast<uint64_t>(plan.beginning.state.seed)),
      consumed_(plan.beginning.state.consumed_samples) {
  options_.loss_scope = s_.batch.scope();
  options_.recompute = s_.batch.recompute();
  options_.vocabulary = plan.config.vocab_size;
  options_.positions = plan.config.max_position_embeddings;
  fill_model(plan.beginning);
  if (s_.checkpoint.save)
    checkpointer_.emplace(s_.checkpoint, plan.saved, model_, step_->optimizer(), world_, runtime_,
                          hooks.files == nullptr ? system_files() : *hooks.files);
}

void RankRun::fill_model(const Beginning& beginning) {
  if (beginning.weights != nullptr) {
    checkpoint::load(*beginning.weights, model_.parameters());
  } else {
    model_.initialize(static_cast<uint64_t>(s_.runtime.seed));
  }
  // A master weight begins as the weight's value.
  step_.emplace(model_, s_.precision.type(), s_.optimizer.config, group_, runtime_, options_);
  if (beginning.checkpoint == nullptr || !s_.checkpoint.load_optimizer) return;
  std::vector<checkpoint::HeldTensor> held;
  for (const optim::Optimizer::State& state : step_->optimizer().states())
    held.push_back({state.name + ".", &state.placed->placement, state.value});
  beginning.checkpoint->load_optimizer(held);
  step_->optimizer().resume(beginning.state.optimizer_steps);
}

TrainResult RankRun::loop() {
  if (checkpointer_ && plan_.iterations_left() > 0) checkpointer_->check_room();
  if (lead()) {
    progress_.emplace("training", *s_.batch.train_iters, "steps", plan_.first_iteration());
    log_.emplace(s_.log, s_.checkpoint.save.value_or(""), run_record(), &*progress_);
  }
  result_.first_iteration = plan_.first_iteration();
  int64_t last = plan_.first_iteration();
  try {
    if (plan_.iterations_left() > 0) {
      Prefetcher data = read_ahead();
      train_on(data);
    } else if (lead()) {
      log::info("the run is at step {}, and {} were to be made: nothing is left to do; raise {}",
                last, *s_.batch.train_iters,
                s_.batch.train_samples ? "--train-samples" : "--train-iters");
    }
  } catch (const std::exception& error) {
    if (!result_.iterations.empty()) last = result_.iterations.back().iteration;
    if (log_) log_->end(last, EndReason::error, error.what());
    throw;
  }
  if (!result_.iterations.empty()) last = result_.iterations.back().iteration;
  if (log_) log_->end(last, result_.end, "");
  if (progress_) progress_->finish();
  return std::move(result_);
}

void RankRun::train_on(Prefetcher& data) {
  const int64_t iterations = *s_.batch.train_iters;
  for (int64_t i = plan_.first_iteration() + 1; i <= iterations; ++i) {
    const IterationReport report = one_step(i, data);
    if (lead()) tell(report);
    run_hook(report);
    if (s_.run.eval_interval && i % *s_.run.eval_interval == 0) validate(i);
    if (s_.run.sample_interval && i % *s_.run.sample_interval == 0) write_samples(i);
    const std::optional<EndReason> end = i == iterations ? EndReason::done : end_after(i);
    const std::optional<int64_t>& interval = s_.checkpoint.save_interval;
    if (checkpointer_ && (end || (interval && i % *interval == 0))) {
      save(i, end.has_value());
    } else if (checkpointer_) {
      tell_saved(checkpointer_->poll(false));
    }
    if (!end) continue;
    result_.end = *end;
    return;
  }
}

// While a step runs, the micro-batches of the next one are read.
Prefetcher RankRun::read_ahead() const {
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
  return Prefetcher(set, std::move(sampler), *s_.batch.seq_length,
                    (plan_.last_sample() - consumed_) / together,
                    s_.batch.schedule.last() / together);
}

IterationReport RankRun::one_step(int64_t iteration, Prefetcher& data) {
  const double begin = now_seconds(), waited = data.waited();
  const double communicated = group_.seconds();
  const data::BatchSchedule& schedule = s_.batch.schedule;
  std::vector<HostBatch> micro_batches;
  for (int64_t m = schedule.micro_batches(consumed_); m > 0; --m)
    micro_batches.push_back(data.next());
  IterationReport report{.iteration = iteration,
                         .batch = schedule.batch(consumed_),
                         .learning_rate = plan_.learning_rate.at(consumed_),
                         .weight_decay = plan_.weight_decay.at(consumed_),
                         .data_wait = data.waited() - waited};
  const StepReport step = step_->run(micro_batches, report.learning_rate, report.weight_decay);
  consumed_ += report.batch;
  report.consumed = consumed_;
  report.loss = step.loss;
  report.gradient_norm = step.gradient_norm;
  report.communication_wait = group_.seconds() - communicated;
  report.seconds = now_seconds() - begin;
  MG_CHECK(std::isfinite(step.loss) && std::isfinite(step.gradient_norm),
           "loss {} and gradient norm {} at iteration {}: the run has diverged; lower --lr, or "
           "check the data",
           step.loss, step.gradient_norm, iteration);
  return report;
}

// The other ranks stand still meanwhile.
void RankRun::run_hook(const IterationReport& report) {
  if (!hooks_.after_step) return;
  group_.barrier("hook.begin");
  if (lead()) hooks_.after_step(report);
  group_.barrier("hook.end");
}

void RankRun::tell(const IterationReport& report) {
  result_.iterations.push_back(report);
  const double samples = static_cast<double>(report.batch);
  const double flops = training_flops(plan_.config, *s_.batch.seq_length) * samples;
  const double whole = report.seconds + save_wait_;
  StepRecord record{
      .iteration = report.iteration,
      .consumed_samples = report.consumed,
      .consumed_tokens = report.consumed * *s_.batch.seq_length,
      .loss = report.loss,
      .learning_rate = report.learning_rate,
      .gradient_norm = report.gradient_norm,
      .weight_decay = report.weight_decay,
      .global_batch_size = report.batch,
      .seconds = report.seconds,
      .tokens_per_second = samples * static_cast<double>(*s_.batch.seq_length) / report.seconds,
      .flops_per_second = flops / report.seconds,
      .peak_share = peak_ > 0 ? flops / report.seconds / peak_ : -1,
      .data_wait = report.data_wait / report.seconds,
      .communication_wait = report.communication_wait / report.seconds,
      .save_wait = save_wait_ / whole};
  const auto done = static_cast<double>(report.iteration - plan_.first_iteration());
  record.seconds_left = (now_seconds() - begin_) / done *
                        static_cast<double>(*s_.batch.train_iters - report.iteration);
  for (int c = 0; c < kMemoryClasses; ++c)
    record.memory[static_cast<size_t>(c)] =
        runtime_.arena(static_cast<MemoryClass>(c)).high_water();
  save_wait_ = 0;
  log_->step(record);
  progress_->update(report.iteration, fmt::format("loss {:.4f} | {} tokens/s", report.loss,
                                                  format_count(record.tokens_per_second)));
}

void RankRun::validate(int64_t iteration) {
  const int64_t count = s_.run.eval_iters * *s_.batch.global_batch_size;
  const int64_t first = (iteration / *s_.run.eval_interval - 1) * count;
  for (const NamedSet& part : plan_.corpus.validation) {
    const LossSum sum =
        s_.run.full_validation
            ? evaluate_all(model_, s_.precision.type(), *part.set, *s_.batch.micro_batch_size,
                           *s_.batch.seq_length, group_, runtime_, options_)
            : evaluate(model_, s_.precision.type(), *part.set, first, count,
                       *s_.batch.micro_batch_size, *s_.batch.seq_length, group_, runtime_,
                       options_);
    if (!lead()) continue;
    result_.validation_loss = sum.mean();
    log_->validation({.iteration = iteration,
                      .set = s_.run.multiple_validation_sets ? part.name : "valid",
                      .loss = sum.mean(),
                      .tokens = sum.tokens});
  }
}

void RankRun::write_samples(int64_t iteration) {
  if (!hooks_.continue_text) return;
  world_.barrier("sample.begin");
  if (lead()) {
    for (const std::string& prompt : s_.run.sample_prompt)
      log_->sample({iteration, prompt,
                    hooks_.continue_text(model_, runtime_, *plan_.vocabulary.tokenizer, prompt,
                                         s_.run.sample_tokens)});
  }
  world_.barrier("sample.end");
}

void RankRun::save(int64_t iteration, bool last) {
  const double begin = now_seconds();
  tell_saved(checkpointer_->save(state(iteration), last));
  save_wait_ += now_seconds() - begin;
}

void RankRun::tell_saved(const std::vector<SaveRecord>& records) {
  if (!lead()) return;
  for (const SaveRecord& record : records) {
    result_.saved = record.path;
    log_->save(record);
    log::info("saved iteration {} to {} ({} in {:.2f} s; training stood still for {:.2f} s)",
              record.iteration, record.path, format_bytes(static_cast<double>(record.bytes)),
              record.seconds, record.wait);
  }
}

// Why the run ends after this step, before its last; the same on all ranks.
std::optional<EndReason> RankRun::end_after(int64_t iteration) {
  const CheckpointSettings& c = s_.checkpoint;
  if (c.exit_signal_handler || c.exit_duration_in_mins) {
    const int signal = hooks_.signals == nullptr ? 0 : hooks_.signals->caught().value_or(0);
    const bool late =
        c.exit_duration_in_mins && now_seconds() - plan_.began > 60 * *c.exit_duration_in_mins;
    std::array anywhere = {static_cast<double>(signal), late ? 1.0 : 0.0};
    comm::largest(world_, runtime_.stream(), anywhere, "end");
    result_.signal = static_cast<int>(anywhere[0]);
    if (result_.signal != 0) return EndReason::signal;
    if (anywhere[1] != 0) return EndReason::exit_duration;
  }
  if (c.exit_interval && iteration % *c.exit_interval == 0) return EndReason::exit_interval;
  return std::nullopt;
}

TrainerState RankRun::state(int64_t iteration) const {
  const bool adam = s_.optimizer.config.method == optim::Method::adam;
  return {.iteration = iteration,
          .consumed_samples = consumed_,
          .seed = plan_.beginning.state.seed,
          .precision = std::string(name(s_.precision.type())),
          .optimizer = adam ? "adam" : "sgd",
          .optimizer_steps = step_->optimizer().steps(),
          .has_optimizer = s_.checkpoint.save_optimizer,
          .learning_rate = plan_.learning_rate,
          .weight_decay = plan_.weight_decay,
          .data = data_settings(s_),
          .layout = layout_of(s_)};
}

RunRecord RankRun::run_record() const {
  TrainSettings now = s_, plain;
  RunRecord record{.iteration = plan_.first_iteration(),
                   .flags = changed(now.fields(), plain.fields()),
                   .model = models::describe(plan_.config),
                   .layout = layout_of(s_),
                   .parameters = parameter_count(plan_.config),
                   .threads = s_.runtime.threads_per_rank(),
                   .train_iters = *s_.batch.train_iters,
                   .seq_length = *s_.batch.seq_length};
  record.device = s_.runtime.device;
  record.precision = name(s_.precision.type());
  record.flop_formula = kFlopFormula;
  record.peak_flops = peak_;
  return record;
}

}  // namespace megatron::training
