#include "training/trainer.h"

#include <cmath>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "comm/threads.h"
#include "data/sampler.h"
#include "kernels/table.h"
#include "parallel/mesh.h"
#include "training/evaluate.h"
#include "training/flops.h"
#include "training/peak.h"
#include "training/run_plan.h"

namespace megatron::training {
namespace {

// The run as one rank sees it.
class RankRun {
 public:
  RankRun(const RunPlan& plan, double peak, comm::Group& world, const TrainHooks& hooks)
      : plan_(plan),
        peak_(peak),
        s_(plan.settings),
        mesh_(parallel::Mesh::build(s_.runtime.layout(), world)),
        group_(mesh_.group({parallel::Axis::dp, parallel::Axis::cp})),
        hooks_(hooks),
        runtime_(s_.runtime.device_value(), s_.runtime.threads_per_rank()),
        model_(plan.config, runtime_, s_.batch.type(), static_cast<uint64_t>(s_.runtime.seed)) {
    if (plan.initial_weights != nullptr) {
      checkpoint::load(*plan.initial_weights, model_.parameters());
    } else {
      model_.initialize(static_cast<uint64_t>(s_.runtime.seed));
    }
    options_.loss_scope = s_.batch.scope();
    options_.recompute = s_.batch.recompute();
    options_.vocabulary = plan.config.vocab_size;
    options_.positions = plan.config.max_position_embeddings;
    step_.emplace(model_, s_.batch.type(), s_.optimizer.config, group_, runtime_, options_);
  }

  TrainResult loop() {
    const int64_t iterations = *s_.batch.train_iters;
    data::SequentialSampler sampler(plan_.corpus.set(data::Split::train).size(), 0,
                                    *s_.batch.micro_batch_size, group_.rank(), group_.size());
    std::optional<Progress> progress;
    if (lead()) progress.emplace("training", iterations, "steps");
    for (int64_t i = 1; i <= iterations; ++i) {
      const IterationReport report = one_step(i, sampler);
      if (lead()) tell(report, *progress);
      run_hook(report);
      if (s_.run.eval_interval && i % *s_.run.eval_interval == 0) validate(i, progress);
      if (s_.run.save_interval && i % *s_.run.save_interval == 0 && i != iterations) save(i);
    }
    if (progress) progress->finish(text_);
    save(iterations);
    return std::move(result_);
  }

 private:
  bool lead() const { return group_.rank() == 0; }

  IterationReport one_step(int64_t iteration, data::SequentialSampler& sampler) {
    const double begin = now_seconds();
    const data::Dataset& set = plan_.corpus.set(data::Split::train);
    std::vector<HostBatch> micro_batches;
    for (int64_t m = 0; m < s_.batch.micro_batches(group_.size()); ++m) {
      std::vector<int64_t> indices;
      const bool more = sampler.next(indices);
      MG_ASSERT(more);
      micro_batches.push_back(read_batch(set, indices, *s_.batch.seq_length));
    }
    const int64_t samples = (iteration - 1) * *s_.batch.global_batch_size;
    IterationReport report{.iteration = iteration,
                           .learning_rate = plan_.learning_rate.at(samples)};
    const StepReport step =
        step_->run(micro_batches, report.learning_rate, plan_.weight_decay.at(samples));
    report.loss = step.loss;
    report.gradient_norm = step.gradient_norm;
    report.seconds = now_seconds() - begin;
    MG_CHECK(std::isfinite(step.loss) && std::isfinite(step.gradient_norm),
             "loss {} and gradient norm {} at iteration {}: the run has diverged; lower --lr, or "
             "check the data",
             step.loss, step.gradient_norm, iteration);
    return report;
  }

  // The other ranks stand still meanwhile.
  void run_hook(const IterationReport& report) {
    if (!hooks_.after_step) return;
    group_.barrier("hook.begin");
    if (lead()) hooks_.after_step(report);
    group_.barrier("hook.end");
  }

  void tell(const IterationReport& report, Progress& progress) {
    result_.iterations.push_back(report);
    interval_loss_ += report.loss;
    interval_seconds_ += report.seconds;
    ++interval_steps_;
    const double step_seconds = interval_seconds_ / static_cast<double>(interval_steps_);
    const double tokens = static_cast<double>(*s_.batch.global_batch_size * *s_.batch.seq_length);
    const double flops = training_flops(plan_.config, *s_.batch.seq_length) *
                         static_cast<double>(*s_.batch.global_batch_size);
    text_ =
        fmt::format("loss {:.4f} | {} tokens/s | {:.3g} TFLOP/s, {:.1f}% of {} GEMM peak",
                    report.loss, format_count(tokens / step_seconds), flops / step_seconds * 1e-12,
                    100 * flops / step_seconds / peak_, name(s_.batch.type()));
    progress.update(report.iteration, text_);
    if (report.iteration != 1 && report.iteration % s_.run.log_interval != 0) return;
    progress.print(fmt::format(
        "iteration {:>6}/{} | consumed samples: {} | elapsed time per iteration (ms): {:.1f} | "
        "learning rate: {:.6E} | "
        "global batch size: {} | lm loss: {:.6E} | grad norm: {:.3f} | tokens/s: {:.0f} | TFLOP/s "
        "(model): {:.4f} | "
        "{:.1f}% of {} GEMM peak",
        report.iteration, *s_.batch.train_iters, report.iteration * *s_.batch.global_batch_size,
        1000 * step_seconds, report.learning_rate, *s_.batch.global_batch_size, report.loss,
        report.gradient_norm, tokens / step_seconds, flops / step_seconds * 1e-12,
        100 * flops / step_seconds / peak_, name(s_.batch.type())));
    interval_seconds_ = interval_loss_ = 0;
    interval_steps_ = 0;
  }

  void validate(int64_t iteration, std::optional<Progress>& progress) {
    const data::Dataset& set = plan_.corpus.set(data::Split::valid);
    const int64_t count = s_.run.eval_iters * *s_.batch.global_batch_size;
    const int64_t first = (iteration / *s_.run.eval_interval - 1) * count;
    const LossSum sum =
        evaluate(model_, s_.batch.type(), set, first, count, *s_.batch.micro_batch_size,
                 *s_.batch.seq_length, group_, runtime_, options_);
    if (!lead()) return;
    result_.validation_loss = sum.mean();
    progress->print(
        fmt::format("validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E}",
                    iteration, sum.mean(), std::exp(std::min(20.0, sum.mean()))));
  }

  void save(int64_t iteration) {
    if (plan_.save && lead()) {
      result_.saved =
          plan_.save->save(iteration, model_, plan_.saved_config, plan_.saved_companions);
      log::info("saved iteration {} to {}", iteration, result_.saved);
    }
    if (plan_.save) group_.barrier("save");
  }

  const RunPlan& plan_;
  double peak_;
  const TrainSettings& s_;
  parallel::Mesh mesh_;
  comm::Group& group_;
  const TrainHooks& hooks_;
  Runtime runtime_;
  models::GptModel model_;
  StepOptions options_;
  std::optional<TrainStep> step_;
  TrainResult result_;
  std::string text_;
  double interval_seconds_ = 0, interval_loss_ = 0;  // since the last log line
  int64_t interval_steps_ = 0;
};

void announce(const RunPlan& plan, double peak) {
  const TrainSettings& s = plan.settings;
  const int ranks = s.runtime.rank_count();
  log::info(
      "model: {} parameters, {} layers, hidden {}, vocabulary {}; {} ranks x {} threads on {}, {}",
      format_count(static_cast<double>(parameter_count(plan.config))), plan.config.num_layers,
      plan.config.hidden_size, plan.config.vocab_size, ranks, s.runtime.threads_per_rank(),
      s.runtime.device, name(s.batch.type()));
  log::info(
      "data: {} training samples of {} tokens; global batch {} = {} ranks x {} micro-batches of {}",
      plan.corpus.set(data::Split::train).size(), *s.batch.seq_length, *s.batch.global_batch_size,
      ranks, s.batch.micro_batches(ranks), *s.batch.micro_batch_size);
  const std::string_view remark =
      kernels::remark_on_products(s.runtime.device_value().kind, s.batch.type());
  if (!remark.empty()) log::info("{}", remark);
  log::info("measured {} GEMM peak of this machine: {:.3f} TFLOP/s", name(s.batch.type()),
            peak * 1e-12);
}

}  // namespace

TrainResult train(const TrainSettings& settings, const TrainHooks& hooks) {
  RunPlan plan = make_run_plan(settings);
  const RuntimeSettings& r = plan.settings.runtime;
  double peak = 0;  // FLOP/s of this machine, all threads
  {
    Runtime whole(r.device_value(), r.rank_count() * r.threads_per_rank());
    peak = best_rate(sample_gemm_rates(whole, plan.settings.batch.type(), 0.3));
  }
  announce(plan, peak);
  TrainResult result;
  comm::run_ranks(r.rank_count(), [&](comm::Group& world) {
    RankRun run(plan, peak, world, hooks);
    TrainResult mine = run.loop();
    if (world.rank() == 0) result = std::move(mine);
  });
  result.config = plan.config;
  result.settings = plan.settings;
  return result;
}

}  // namespace megatron::training
