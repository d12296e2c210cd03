#include "training/rank_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "comm/values.h"
#include "kernels/table.h"
#include "models/prediction_names.h"
#include "report/log/machine.h"
#include "tensor/finite.h"
#include "training/adapter_run.h"
#include "training/non_finite.h"
#include "training/plan/make_plan.h"
#include "training/sample_text.h"
#include "training/stored_reference.h"
#include "training/weights_norm.h"
#include "training/whole_on_one.h"

namespace megatron::training {
namespace {

template <class T>
int64_t zeros_in(const Tensor& values, int64_t begin, int64_t end) {
  const T* const data = values.data<T>();
  return std::count(data + begin, data + end, T{0});
}

int64_t zeros_of(const parallel::Shard& shard) {
  const Tensor values = on_host(shard.gradient);
  int64_t zeros = 0;
  parallel::for_each_run(*shard.placed, [&](const auto&, int64_t, int64_t local, int64_t size) {
    const int64_t begin = std::max(local - shard.begin, int64_t{0});
    const int64_t end = std::min(local + size - shard.begin, shard.size());
    if (begin >= end) return;
    zeros += values.dtype() == DType::f64 ? zeros_in<double>(values, begin, end)
                                          : zeros_in<float>(values, begin, end);
  });
  return zeros;
}

// --log-num-zeros-in-grad: number of zeros in all gradients of the model. Each element counts once,
// whichever ranks hold it; rows that only pad the vocabulary do not count. Call it after a step and
// before the next. GPU gradients are copied to the host. Collective over ranks.norm().
int64_t gradient_zeros(std::span<const parallel::Shard> shards, const parallel::Ranks& ranks,
                       Runtime& runtime) {
  runtime.stream().synchronize();
  int64_t zeros = 0;
  for (const parallel::Shard& shard : shards)
    if (shard.counted && shard.gradient.defined() && shard.size() > 0) zeros += zeros_of(shard);
  comm::Group* const group = ranks.norm();
  if (group == nullptr) return zeros;
  const auto mine = static_cast<double>(zeros);  // exact below 2^53
  Tensor all = Tensor::empty(runtime.arena(MemoryClass::scratch), {}, DType::f64, "gradient.zeros");
  copy_from(all, std::span<const double>(&mine, 1));
  group->all_reduce(all, comm::Reduce::sum, runtime.stream(), "gradient.zeros")
      .wait(runtime.stream());
  return static_cast<int64_t>(read_scalar(all, runtime.stream()));
}

StepOptions options_of(const RunPlan& plan) {
  StepOptions options = step_options(plan.settings, plan.model, plan.task.get());
  options.sources = plan.corpus.sources;
  return options;
}

}  // namespace

RankRun::RankRun(const RunPlan& plan, double peak, comm::Group& world, const TrainHooks& hooks)
    : plan_(plan),
      s_(plan.settings),
      profile_(s_.profile, world),
      world_(profile_.world()),
      hooks_(hooks),
      begin_(now_seconds()),
      runtime_(s_.runtime.device_value(world.rank()), s_.runtime.threads_per_rank(),
               DeviceKind::cpu, s_.runtime.ranks_in_process()),
      model_(plan.model, s_.precision.type(), static_cast<uint64_t>(plan.start.state.seed),
             model_layout(s_, plan.model), world_, runtime_, options_of(plan)),
      replicas_(model_.ranks.replicas()),
      counts_(RunCounts::of(plan.start.state)),
      reporter_(plan, peak, begin_, counts_, model_, world_) {
  s_.runtime.limit_kernels(runtime_.stream());
  gemm_choices_.emplace(s_, plan.start, world_, runtime_, files());
  passed_over_ = s_.run.skipped();
  make_reference();
  fill_model(plan.start);
  if (s_.checkpoint.save)
    checkpointer_.emplace(s_.checkpoint, plan.saved, plan.whole, model_.step, world_, runtime_,
                          files());
}

void RankRun::make_reference() {
  const bool needed =
      plan_.iterations_left() > 0 || s_.run.skip_train || plan_.evaluates_test_set();
  if (!plan_.reference || !needed) return;
  if (s_.data.precompute_reference) {
    reference_ = stored_reference(plan_, model_);
  } else if (has_base_reference(plan_.model, s_.data)) {
    reference_ = std::make_unique<BaseReference>(model_, s_.precision.type());
    if (lead()) log::info("reference model: the model without its adapter");
  } else {
    const models::Model model = models::without_adapter(plan_.model);
    auto second = std::make_unique<ReferenceModel>(model_, model, s_.precision.type(),
                                                   s_.parallel.placement());
    load_reference(*plan_.reference, whole_model(model, s_.precision.type()), second->shards(),
                   second->states(), static_cast<uint64_t>(s_.runtime.seed), runtime_.stream(),
                   lead());
    second->filled();
    reference_ = std::move(second);
  }
  model_.loss_pass.take_reference(reference_.get());
}

void RankRun::fill_model(const resume::StartingPoint& start) {
  if (start.weights != nullptr) {
    load_weights(start);
  } else {
    model_.initialize(static_cast<uint64_t>(s_.runtime.seed));
  }
  model_.step.begin(s_.optimizer.config);
  leave_low_precision(plan_.first_iteration());
  const bool has_states = start.checkpoint != nullptr && s_.checkpoint.load_optimizer;
  if (!has_states && lead() && start.weights != nullptr &&
      std::ranges::any_of(model_.step.states(), &nn::ModuleState::of_training))
    log::info("the scales of --fp8-recipe delayed begin with 1");
  if (!has_states) return;
  load_states(*start.checkpoint, model_.step, plan_.whole, lead());
  model_.step.data_parallel().scales_changed();
  model_.step.optimizer().resume(start.state.optimizer_steps);
  if (start.state.loss_scale && model_.step.loss_scale().dynamic())
    model_.step.loss_scale().resume(*start.state.loss_scale);
}

// A checkpoint has every state; plain weights may come from a model without states.
void RankRun::load_weights(const resume::StartingPoint& start) {
  for (nn::ModuleState* state : model_.step.states())
    if (state->of_training)
      parallel::initialize(state->placed, static_cast<uint64_t>(s_.runtime.seed),
                           runtime_.stream());
  if (plan_.upcycled)
    return load_upcycled(*start.weights, *plan_.upcycled, model_.step,
                         static_cast<uint64_t>(s_.runtime.seed), runtime_, lead());
  if (plan_.stored_tokens > 0) draw_new_tokens(*start.weights);
  std::vector<std::string> absent;
  if (start.checkpoint == nullptr) absent = absent_states(plan_.whole, *start.weights);
  if (!absent.empty()) {
    nn::initialize(model_.step.states(), static_cast<uint64_t>(s_.runtime.seed), runtime_.stream());
    if (lead()) log::warning("{}", absent_states_text(start.weights->path(), absent));
  }
  if (plan_.new_head) draw_new_head(*start.weights, absent);
  if (plan_.new_adapter()) draw_new_adapter(absent);
  training::load_weights(*start.weights, model_.held(), plan_.whole,
                         {.absent = absent, .tells = lead(), .stored_tokens = plan_.stored_tokens});
}

void RankRun::draw_new_adapter(std::vector<std::string>& absent) {
  const std::vector<std::string> names = adapter_tensors(plan_.whole);
  for (const parallel::Shard& shard : model_.step.shards())
    if (shard.placed->placement.tensors.at(0).name.starts_with(checkpoint::kAdapterPrefix))
      parallel::initialize(shard, static_cast<uint64_t>(s_.runtime.seed), runtime_.stream());
  fill_from_model(model_.step.shards(), plan_.whole, *plan_.start.weights);
  absent.insert(absent.end(), names.begin(), names.end());
}

void RankRun::draw_new_head(const checkpoint::ModelDirectory& directory,
                            std::vector<std::string>& absent) {
  const std::vector<std::string> names = new_head_tensors(plan_.whole, directory);
  for (const parallel::Shard& shard : model_.step.shards())
    if (std::ranges::find(names, shard.placed->placement.tensors.at(0).name) != names.end())
      parallel::initialize(shard, static_cast<uint64_t>(s_.runtime.seed), runtime_.stream());
  absent.insert(absent.end(), names.begin(), names.end());
  if (!lead()) return;
  log::info(
      "'{}' is a language model: its output layer is replaced by {}, initialized as in a new model "
      "with --seed {}{}",
      directory.path(), plan_.whole.head, s_.runtime.seed,
      names.size() == 1 ? ""
                        : fmt::format("; so {} {}", names.size() == 2 ? "is" : "are",
                                      fmt::join(names.begin() + 1, names.end(), ", ")));
}

// All rows of the embedding and the output layer; those of the directory are read over them.
void RankRun::draw_new_tokens(const checkpoint::ModelDirectory& directory) {
  initialize_token_rows(model_.step.shards(), plan_.whole, static_cast<uint64_t>(s_.runtime.seed),
                        runtime_.stream());
  if (!lead()) return;
  log::info(
      "the vocabulary of '{}' grows from {} to {} tokens: the new rows of {}{} are initialized as "
      "in a new model with --seed {}",
      directory.path(), plan_.stored_tokens, plan_.model->vocab_size(), plan_.whole.table,
      plan_.whole.head.empty() || !has_a_row_per_token(plan_.whole, plan_.whole.head)
          ? ""
          : " and " + plan_.whole.head,
      s_.runtime.seed);
}

TrainResult RankRun::loop() {
  if (checkpointer_ && plan_.iterations_left() > 0) checkpointer_->check_room();
  if (lead() && !s_.run.skip_train && plan_.iterations_left() > 0) {
    std::optional<resume::SaveSpace> space;
    if (checkpointer_) space = checkpointer_->space(plan_.first_iteration(), *s_.batch.train_iters);
    reporter_.announce_saves(space);
  }
  profile_.open(plan_.first_iteration(), s_.run.skip_train ? 0 : *s_.batch.train_iters,
                s_.profile.directory.value_or(s_.checkpoint.save.value_or(".")), files());
  reporter_.open(hooks_.lines);
  result_.first_iteration = plan_.first_iteration();
  int64_t last = plan_.first_iteration();
  try {
    if (s_.run.skip_train) {
      validate(last);
    } else if (plan_.iterations_left() > 0) {
      StepFeed feed(plan_, counts_.consumed, model_.ranks);
      train_on(feed);
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
    reporter_.end(last, report::EndReason::error, error.what());
    throw;
  }
  if (!result_.iterations.empty()) last = result_.iterations.back().iteration;
  finish_profile();
  result_.recorded = model_.step.recorded();
  tell_recorded();
  reporter_.end(last, result_.end);
  return std::move(result_);
}

// Times the GEMMs of a step, on the data of the first one. If that has one micro-batch and later
// steps have more, it is used twice, so that gradient accumulation is timed as well.
void RankRun::tune_gemms(StepFeed& feed) {
  if (!gemm_choices_->tunes()) return;
  model_.step.work_reporter().step(plan_.first_iteration() + 1, true);
  model_.step.work_reporter().phase("data");
  const std::span<const corpus::HostBatch> first = feed.peek(counts_.consumed);
  std::vector<corpus::HostBatch> rehearsed(first.begin(), first.end());
  complete(rehearsed);
  if (rehearsed.size() == 1 &&
      s_.batch.schedule.last() > *s_.batch.micro_batch_size * model_.ranks.samples().size())
    rehearsed.push_back(rehearsed[0]);
  gemm_choices_->make([&] { model_.step.rehearse(rehearsed); });
}

void RankRun::leave_low_precision(int64_t iteration) {
  const std::optional<int64_t> at = s_.precision.fp4_switch_to_bf16_at;
  if (!at || iteration < *at || high_precision_) return;
  high_precision_.emplace(model_.step.chunks());
  model_.step.data_parallel().scales_changed();
  if (lead())
    log::info("from step {} on, products are computed in {} (--fp4-switch-to-bf16-at {})",
              iteration, name(s_.precision.type()), *at);
}

void RankRun::train_on(StepFeed& feed) {
  tune_gemms(feed);
  const int64_t iterations = *s_.batch.train_iters;
  for (int64_t i = plan_.first_iteration() + 1; i <= iterations; ++i) {
    // may_be_long: the first step also packs weights and allocates memory.
    model_.step.work_reporter().step(i, i == plan_.first_iteration() + 1);
    profile_.begin(i, model_.step, runtime_.stream());
    leave_low_precision(i);
    if (std::ranges::binary_search(passed_over_, i - 1)) {
      read_step(feed);
      counts_.consumed += s_.batch.schedule.batch(counts_.consumed);
    } else {
      const IterationReport report = one_step(i, feed);
      reporter_.step(report);
      if (lead()) result_.iterations.push_back(report);
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

// Generates samples, decides whether the run ends, and saves. Does nothing after a step of
// --iterations-to-skip, unless it is the last one.
std::optional<report::EndReason> RankRun::finish_iteration(int64_t i) {
  const bool last = i == *s_.batch.train_iters;
  if (!last && std::ranges::binary_search(passed_over_, i - 1)) return std::nullopt;
  if (s_.run.sample_interval && i % *s_.run.sample_interval == 0) write_samples(i);
  const std::optional<report::EndReason> end = last ? report::EndReason::done : end_after(i);
  const std::optional<int64_t>& interval = s_.checkpoint.save_interval;
  if (checkpointer_ && (end || (interval && i % *interval == 0))) {
    save(i, end.has_value());
  } else if (checkpointer_) {
    take_saved(checkpointer_->poll(false));
  }
  return end;
}

// Adds the reference model's log-probabilities.
void RankRun::complete(std::span<corpus::HostBatch> micro_batches) {
  if (reference_ == nullptr) return;
  const Profile::Scope part = profile_.scope(Track::step, "reference");
  reference_->fill(plan_.corpus.set(data::Split::train), micro_batches);
}

std::span<corpus::HostBatch> RankRun::read_step(StepFeed& feed) {
  model_.step.work_reporter().phase("data");
  const Profile::Scope part = profile_.scope(Track::data, "wait for data");
  return feed.read(counts_.consumed);
}

IterationReport RankRun::one_step(int64_t iteration, StepFeed& feed) {
  const double begin = now_seconds(), waited = feed.waited();
  const double communicated = model_.ranks.seconds();
  const CallCounts calls = runtime_.stream().calls();
  const data::BatchSchedule& schedule = s_.batch.schedule;
  Profile::Scope part = profile_.scope(Track::step, "step");
  const std::span<corpus::HostBatch> micro_batches = read_step(feed);
  IterationReport report{.iteration = iteration,
                         .batch = schedule.batch(counts_.consumed),
                         .learning_rate = plan_.learning_rate.at(counts_.scheduled),
                         .weight_decay = plan_.weight_decay.at(counts_.scheduled),
                         .data_wait = feed.waited() - waited};
  complete(micro_batches);
  const StepReport step = model_.step.run(
      micro_batches,
      {.learning_rate = report.learning_rate,
       .weight_decay = report.weight_decay,
       .decoupled_learning_rate = plan_.learning_rate.decoupled_at(counts_.scheduled)});
  counts_.add_step(report.batch, step.updated());
  report.consumed = counts_.consumed;
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
  if (step.outcome == StepOutcome::not_finite) not_finite(report, micro_batches);
  warn_of_skipped(report);
  return report;
}

// Without this warning, a loss scale that cannot fall further would skip every step, visible only
// as a number in the log.
void RankRun::warn_of_skipped(const IterationReport& report) {
  constexpr int64_t kMany = 50;  // 2^32 falls to 1 in 33 steps
  if (!model_.step.options().loss_scale || counts_.skipped_in_row != kMany) return;
  reporter_.warn(
      report.iteration,
      fmt::format("the last {} steps were all skipped, at a loss scale of {}: nothing is "
                  "being learned. Lower --loss-scale or --min-loss-scale, or --lr, or "
                  "train with --bf16",
                  kMany, report.loss_scale));
}

// Weights and optimizer are unchanged by the step. The kernel that produced the value is searched
// for only once per run.
void RankRun::not_finite(const IterationReport& report,
                         std::span<const corpus::HostBatch> micro_batches) {
  const bool stop = s_.precision.on_non_finite == settings::OnNonFinite::stop;
  std::string what =
      fmt::format("iteration {}: the loss is {} and the gradient norm {}", report.iteration,
                  unsigned_nan(report.loss), unsigned_nan(report.gradient_norm));
  for (const auto& metric : report.metrics)
    if (metric.name == models::kPredictionNorm)
      what += fmt::format(", that of multi-token prediction {}", unsigned_nan(metric.value));
  std::string found;
  if (!not_finite_reported_) found = first_non_finite(model_.step, micro_batches, world_, runtime_);
  not_finite_reported_ = true;
  MG_CHECK(!stop,
           "{}. First: {}. The step was skipped and nothing was saved after it; lower --lr, "
           "check the data, or skip such steps with --on-non-finite skip",
           what, found);
  reporter_.warn(report.iteration,
                 fmt::format("{}; the step is skipped{}", what,
                             found.empty() ? fmt::format(" ({} so far)", counts_.skipped)
                                           : ". First: " + found));
}

// Runs the hook on rank 0 while the other ranks wait.
void RankRun::run_hook(const IterationReport& report) {
  if (!hooks_.after_step) return;
  replicas_.barrier("hook.begin");
  if (lead()) hooks_.after_step(report);
  replicas_.barrier("hook.end");
}

void RankRun::save(int64_t iteration, bool last) {
  const Profile::Scope part = profile_.scope(Track::step, "save");
  model_.step.work_reporter().long_phase("save");
  const double begin = now_seconds();
  reporter_.save_begins(iteration);
  take_saved(checkpointer_->save(state(iteration), last));
  reporter_.save_took(now_seconds() - begin);
}

// Returns the reason, equal on all ranks, if the run must end after this step and before its last.
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
          .consumed_samples = counts_.consumed,
          .scheduled_samples = counts_.scheduled,
          .skipped_steps = counts_.skipped,
          .seed = plan_.start.state.seed,
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
          .examples = plan_.examples,
          .reference = plan_.reference ? plan_.reference->fingerprint : "",
          .base = plan_.base,
          .gemm_tuning = gemm_choices_->json()};
}

// Returns the losses of one evaluation's samples of a set, from sample `first` on (fewer if the set
// ends before), or of the whole set.
LossSum RankRun::evaluate_set(const data::Dataset& set, int64_t first) {
  const int64_t micro_batch = s_.eval_micro_batch(), length = s_.batch.labelled_length();
  if (s_.run.full_validation) return evaluate_all(model_.loss_pass, set, micro_batch, length);
  const int64_t count = std::min(s_.run.eval_iters * s_.eval_batch(), set.size() - first);
  return evaluate(model_.loss_pass, set, first, count, micro_batch, length);
}

void RankRun::validate(int64_t iteration) {
  const Profile::Scope part = profile_.scope(Track::step, "validation");
  model_.loss_pass.begin("validation");
  const double begin = now_seconds();
  const int64_t before = s_.run.skip_train ? 0 : s_.run.evaluations_before(iteration);
  for (const corpus::NamedSet& set : plan_.corpus.validation) {
    const LossSum sum = evaluate_set(*set.set, before * s_.run.eval_iters * s_.eval_batch());
    result_.validation_loss = sum.mean();
    reporter_.evaluated(iteration, s_.run.multiple_validation_sets ? set.name : "valid", sum,
                        model_.loss_pass.metrics());
  }
  reporter_.evaluation_took(now_seconds() - begin);
}

void RankRun::test(int64_t iteration) {
  model_.loss_pass.begin("test");
  const double begin = now_seconds();
  const auto& set = plan_.corpus.sets[static_cast<size_t>(data::Split::test)];
  if (set != nullptr && set->size() > 0)
    reporter_.evaluated(iteration, "test", evaluate_set(*set, 0), model_.loss_pass.metrics());
  reporter_.evaluation_took(now_seconds() - begin);
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
      reporter_.sample({iteration, prompt,
                        sample_text(whole, runtime_, *plan_.vocabulary.tokenizer, prompt,
                                    s_.run.sample_tokens, plan_.end_tokens)});
  });
  world_.barrier("sample.end");
}

void RankRun::take_saved(const std::vector<report::SaveRecord>& records) {
  if (std::string path = reporter_.saved(records); !path.empty()) result_.saved = std::move(path);
}

}  // namespace megatron::training
