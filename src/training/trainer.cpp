#include "training/trainer.h"

#include <cmath>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "comm/threads.h"
#include "data/blended_dataset.h"
#include "data/sampler.h"
#include "kernels/table.h"
#include "parallel/mesh.h"
#include "training/evaluate.h"
#include "training/flops.h"
#include "training/peak.h"
#include "training/prefetch.h"
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
    Prefetcher data = read_ahead();
    std::optional<Progress> progress;
    if (lead()) progress.emplace("training", iterations, "steps");
    for (int64_t i = 1; i <= iterations; ++i) {
      const IterationReport report = one_step(i, data);
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

  // While a step runs, the micro-batches of the next one are read.
  Prefetcher read_ahead() const {
    const data::Dataset& set = plan_.corpus.set(data::Split::train);
    const data::SamplerShape shape{.total = set.size(),
                                   .consumed = 0,
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
                      s_.batch.total_samples() / together, s_.batch.schedule.last() / together);
  }

  IterationReport one_step(int64_t iteration, Prefetcher& data) {
    const double begin = now_seconds(), waited = data.waited();
    const data::BatchSchedule& schedule = s_.batch.schedule;
    std::vector<HostBatch> micro_batches;
    for (int64_t m = schedule.micro_batches(consumed_); m > 0; --m)
      micro_batches.push_back(data.next());
    IterationReport report{.iteration = iteration,
                           .batch = schedule.batch(consumed_),
                           .learning_rate = plan_.learning_rate.at(consumed_),
                           .data_wait = data.waited() - waited};
    const StepReport step =
        step_->run(micro_batches, report.learning_rate, plan_.weight_decay.at(consumed_));
    consumed_ += report.batch;
    report.consumed = consumed_;
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
    interval_.seconds += report.seconds;
    interval_.data_wait += report.data_wait;
    interval_.samples += report.batch;
    ++interval_.steps;
    const double seconds = interval_.seconds, samples = static_cast<double>(interval_.samples);
    const double tokens = samples * static_cast<double>(*s_.batch.seq_length);
    const double flops = training_flops(plan_.config, *s_.batch.seq_length) * samples;
    text_ = fmt::format("loss {:.4f} | {} tokens/s | {:.3g} TFLOP/s, {:.1f}% of {} GEMM peak",
                        report.loss, format_count(tokens / seconds), flops / seconds * 1e-12,
                        100 * flops / seconds / peak_, name(s_.batch.type()));
    progress.update(report.iteration, text_);
    if (report.iteration != 1 && report.iteration % s_.run.log_interval != 0) return;
    progress.print(fmt::format(
        "iteration {:>6}/{} | consumed samples: {} | elapsed time per iteration (ms): {:.1f} | "
        "learning rate: {:.6E} | "
        "global batch size: {} | lm loss: {:.6E} | grad norm: {:.3f} | tokens/s: {:.0f} | TFLOP/s "
        "(model): {:.4f} | "
        "{:.1f}% of {} GEMM peak | data wait: {:.1f}%",
        report.iteration, *s_.batch.train_iters, report.consumed,
        1000 * seconds / static_cast<double>(interval_.steps), report.learning_rate, report.batch,
        report.loss, report.gradient_norm, tokens / seconds, flops / seconds * 1e-12,
        100 * flops / seconds / peak_, name(s_.batch.type()), 100 * interval_.data_wait / seconds));
    interval_ = {};
  }

  void validate(int64_t iteration, std::optional<Progress>& progress) {
    const int64_t count = s_.run.eval_iters * *s_.batch.global_batch_size;
    const int64_t first = (iteration / *s_.run.eval_interval - 1) * count;
    for (const NamedSet& part : plan_.corpus.validation) {
      const LossSum sum =
          s_.run.full_validation
              ? evaluate_all(model_, s_.batch.type(), *part.set, *s_.batch.micro_batch_size,
                             *s_.batch.seq_length, group_, runtime_, options_)
              : evaluate(model_, s_.batch.type(), *part.set, first, count,
                         *s_.batch.micro_batch_size, *s_.batch.seq_length, group_, runtime_,
                         options_);
      if (!lead()) continue;
      result_.validation_loss = sum.mean();
      progress->print(fmt::format(
          "validation loss at iteration {}{} | lm loss value: {:.6E} | lm loss PPL: {:.6E}",
          iteration, s_.run.multiple_validation_sets ? " on " + part.name : "", sum.mean(),
          std::exp(std::min(20.0, sum.mean()))));
    }
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
  int64_t consumed_ = 0;  // samples
  struct Interval {
    double seconds = 0, data_wait = 0;
    int64_t samples = 0, steps = 0;
  } interval_;  // since the last log line
};

void announce_data(const RunPlan& plan) {
  const BatchSettings& b = plan.settings.batch;
  const data::Dataset& set = plan.corpus.set(data::Split::train);
  const auto* blend = dynamic_cast<const data::BlendedDataset*>(&set);
  log::info(
      "data: {} training samples of {} tokens{}; global batch {} = {} ranks x {} micro-batches of "
      "{}",
      set.size(), *b.seq_length,
      blend != nullptr ? fmt::format(" of {} data sets", blend->parts().size()) : "",
      b.schedule.batch(0), plan.settings.runtime.rank_count(), b.schedule.micro_batches(0),
      *b.micro_batch_size);
  if (b.schedule.stages().size() > 1) {
    log::info("the global batch size grows to {} by sample {}", b.schedule.last(),
              b.schedule.stages().back().begin);
  }
  if (b.schedule.batch(0) != b.schedule.target(0)) {
    log::warning(
        "--decrease-batch-size-if-needed: global batch size {} is run as {}, a multiple of "
        "micro-batch size x ranks",
        b.schedule.target(0), b.schedule.batch(0));
  }
  if (!b.rampup_batch_size.empty()) {
    log::warning(
        "--rampup-batch-size works here; today's Megatron-LM accepts the flag and ignores it, and "
        "would train with the global batch size {} from the first step",
        *b.global_batch_size);
  }
}

void announce(const RunPlan& plan, double peak) {
  const TrainSettings& s = plan.settings;
  const int ranks = s.runtime.rank_count();
  log::info(
      "model: {} parameters, {} layers, hidden {}, vocabulary {}; {} ranks x {} threads on {}, {}",
      format_count(static_cast<double>(parameter_count(plan.config))), plan.config.num_layers,
      plan.config.hidden_size, plan.config.vocab_size, ranks, s.runtime.threads_per_rank(),
      s.runtime.device, name(s.batch.type()));
  if (plan.vocabulary.padded_size > plan.config.vocab_size) {
    log::info("Megatron-LM would pad the vocabulary to {} rows; here there are no padded rows",
              plan.vocabulary.padded_size);
  }
  announce_data(plan);
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
