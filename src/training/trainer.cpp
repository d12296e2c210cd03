#include "training/trainer.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "comm/threads.h"
#include "data/requested_samples.h"
#include "data/sampler.h"
#include "parallel/mesh.h"
#include "training/evaluate.h"
#include "training/flops.h"
#include "training/model_source.h"
#include "training/peak.h"

namespace megatron::training {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What all ranks share: checked settings, data, shape.
struct Plan {
  TrainSettings settings;
  Vocabulary vocabulary;
  Corpus corpus;
  models::GptConfig config;
  std::unique_ptr<checkpoint::ModelDirectory> initial_weights;
  std::optional<SaveDirectory> save;
  Json saved_config;                          // config.json of the checkpoints
  std::vector<std::string> saved_companions;  // files put beside the weights
  optim::LearningRate learning_rate;
  optim::WeightDecay weight_decay;
  double peak = 0;  // FLOP/s of this machine, all threads
};

models::GptConfig find_shape(const TrainSettings& s, const Vocabulary& vocabulary) {
  models::GptConfig config;
  if (s.run.model) {
    const std::string flag = s.shape.first_shape_flag();
    MG_CHECK(flag.empty(), "--{} and --model {} both give the model's shape; drop one", flag,
             *s.run.model);
    config = models::config_from_hugging_face(
        Json::read(resolve_model_directory(*s.run.model) + "/config.json"));
    config.hidden_dropout = s.shape.hidden_dropout.value_or(config.hidden_dropout);
    config.attention_dropout = s.shape.attention_dropout.value_or(config.attention_dropout);
  } else {
    config = s.shape.to_config(*s.batch.seq_length);
    config.vocab_size = vocabulary.size;
  }
  config.finalize();
  MG_CHECK(config.vocab_size >= vocabulary.size,
           "the model has {} tokens and the tokenizer {}; they do not fit together",
           config.vocab_size, vocabulary.size);
  MG_CHECK(*s.batch.seq_length <= config.max_position_embeddings,
           "--seq-length is {} and the model has {} positions; shorten the one or raise "
           "--max-position-embeddings",
           *s.batch.seq_length, config.max_position_embeddings);
  return config;
}

// What all ranks hold from the first step to the last must fit the machine.
void check_memory(const models::GptConfig& config, const TrainSettings& s) {
  const double parameters = static_cast<double>(parameter_count(config));
  const bool adam = s.optimizer.config.method == optim::Method::adam;
  const double state = adam ? 8 : s.optimizer.config.sgd_momentum > 0 ? 4 : 0;
  const double needed = parameters * (4 + 4 + state) * s.runtime.rank_count();
  const double machine =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  MG_CHECK(
      needed <= machine,
      "the model has {} parameters; weights, gradients and optimizer state of {} ranks need {} "
      "and the machine has {}: use a smaller model (--num-layers {}, --hidden-size {}) or "
      "fewer --ranks",
      format_count(parameters), s.runtime.rank_count(), format_bytes(needed), format_bytes(machine),
      config.num_layers, config.hidden_size);
}

// A model that began as a Hugging Face directory keeps that directory's config.json but for the
// stored type.
void describe_checkpoints(Plan& plan) {
  const TrainSettings& s = plan.settings;
  plan.saved_config = models::config_to_hugging_face(plan.config, s.batch.type());
  const std::string model = s.run.model ? resolve_model_directory(*s.run.model) : "";
  if (!model.empty()) {
    Json original = Json::read(model + "/config.json");
    original.set(original.contains("torch_dtype") ? "torch_dtype" : "dtype",
                 plan.saved_config["dtype"]);
    plan.saved_config = original;
  } else if (plan.vocabulary.tokenizer != nullptr) {
    const tokenizers::Tokenizer& t = *plan.vocabulary.tokenizer;
    if (t.bos()) plan.saved_config.set("bos_token_id", *t.bos());
    if (t.eos()) plan.saved_config.set("eos_token_id", *t.eos());
  }
  plan.saved_companions =
      companion_files(plan.vocabulary.directory.empty() ? model : plan.vocabulary.directory);
}

Plan make_plan(const TrainSettings& given) {
  Plan plan{.settings = given};
  TrainSettings& s = plan.settings;
  s.runtime.check();
  const int ranks = s.runtime.rank_count();
  s.batch.finalize(ranks);
  s.optimizer.config.check();
  const int64_t iterations = *s.batch.train_iters, batch = *s.batch.global_batch_size;
  plan.learning_rate = s.optimizer.learning_rate(iterations, batch);
  plan.weight_decay = s.optimizer.decay(iterations, batch);
  MG_CHECK(s.run.log_interval > 0, "--log-interval is {}; it must be positive", s.run.log_interval);
  MG_CHECK(s.run.eval_iters >= 0, "--eval-iters is {}; it cannot be negative", s.run.eval_iters);
  MG_CHECK(!s.run.eval_interval || *s.run.eval_interval > 0,
           "--eval-interval is {}; it must be positive", *s.run.eval_interval);
  MG_CHECK(!s.run.save_interval || *s.run.save_interval > 0,
           "--save-interval is {}; it must be positive", *s.run.save_interval);
  MG_CHECK(!s.run.finetune || s.run.model,
           "--finetune begins with the weights of --model, which is not given");
  if (s.run.save) plan.save.emplace(*s.run.save);
  std::optional<int64_t> vocab_size = s.shape.vocab_size;
  if (s.run.model && !vocab_size && !s.data.tokenizer_model) {
    vocab_size = models::config_from_hugging_face(
                     Json::read(resolve_model_directory(*s.run.model) + "/config.json"))
                     .vocab_size;
  }
  plan.vocabulary = open_vocabulary(s.data, vocab_size);
  plan.config = find_shape(s, plan.vocabulary);
  check_memory(plan.config, s);
  if (plan.save) describe_checkpoints(plan);
  if (s.run.finetune) {
    plan.initial_weights =
        std::make_unique<checkpoint::ModelDirectory>(resolve_model_directory(*s.run.model));
  }
  data::SampleBudget budget;
  budget.train_iterations = iterations;
  budget.global_batch_size = budget.eval_global_batch_size = batch;
  if (s.run.eval_iters == 0) s.run.eval_interval.reset();
  budget.eval_interval = s.run.eval_interval.value_or(iterations + 1);
  budget.eval_iterations = s.run.eval_interval ? s.run.eval_iters : 0;
  auto samples = data::requested_samples(budget);
  samples[static_cast<size_t>(data::Split::test)] = 0;   // nothing reads it here
  plan.corpus = open_corpus(s.data, plan.vocabulary, *s.batch.seq_length, s.runtime.seed, samples);
  plan.corpus.set(data::Split::train);
  if (s.run.eval_interval) plan.corpus.set(data::Split::valid);
  if (plan.save) plan.save->create();
  return plan;
}

// The run as one rank sees it.
class RankRun {
 public:
  RankRun(const Plan& plan, comm::Group& world, const TrainHooks& hooks)
      : plan_(plan),
        s_(plan.settings),
        mesh_(parallel::Mesh::build({}, world)),
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
    const double begin = now();
    const data::GptDataset& set = plan_.corpus.set(data::Split::train);
    std::vector<HostBatch> micro_batches;
    for (int64_t m = 0; m < s_.batch.micro_batches(group_.size()); ++m) {
      std::vector<int64_t> indices;
      MG_ASSERT(sampler.next(indices));
      micro_batches.push_back(read_batch(set, indices, *s_.batch.seq_length));
    }
    const int64_t samples = (iteration - 1) * *s_.batch.global_batch_size;
    IterationReport report{.iteration = iteration,
                           .learning_rate = plan_.learning_rate.at(samples)};
    const StepReport step =
        step_->run(micro_batches, report.learning_rate, plan_.weight_decay.at(samples));
    report.loss = step.loss;
    report.gradient_norm = step.gradient_norm;
    report.seconds = now() - begin;
    MG_CHECK(std::isfinite(step.loss) && std::isfinite(step.gradient_norm),
             "loss {} and gradient norm {} at iteration {}: the run has diverged; lower --lr, or "
             "check the data",
             step.loss, step.gradient_norm, iteration);
    return report;
  }

  void tell(const IterationReport& report, Progress& progress) {
    result_.iterations.push_back(report);
    if (hooks_.after_step) hooks_.after_step(report);
    interval_seconds_ += report.seconds;
    ++interval_steps_;
    const double step_seconds = interval_seconds_ / static_cast<double>(interval_steps_);
    const double tokens = static_cast<double>(*s_.batch.global_batch_size * *s_.batch.seq_length);
    const double flops = training_flops(plan_.config, *s_.batch.seq_length) *
                         static_cast<double>(*s_.batch.global_batch_size);
    text_ =
        fmt::format("loss {:.4f} | {} tokens/s | {:.3g} TFLOP/s, {:.1f}% of {} GEMM peak",
                    report.loss, format_count(tokens / step_seconds), flops / step_seconds * 1e-12,
                    100 * flops / step_seconds / plan_.peak, name(s_.batch.type()));
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
        100 * flops / step_seconds / plan_.peak, name(s_.batch.type())));
    interval_seconds_ = 0;
    interval_steps_ = 0;
  }

  void validate(int64_t iteration, std::optional<Progress>& progress) {
    const data::GptDataset& set = plan_.corpus.set(data::Split::valid);
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

  const Plan& plan_;
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
  double interval_seconds_ = 0;
  int64_t interval_steps_ = 0;
};

void announce(const Plan& plan) {
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
  log::info("measured {} GEMM peak of this machine: {:.3f} TFLOP/s", name(s.batch.type()),
            plan.peak * 1e-12);
}

}  // namespace

TrainResult train(const TrainSettings& settings, const TrainHooks& hooks) {
  Plan plan = make_plan(settings);
  const RuntimeSettings& r = plan.settings.runtime;
  {
    Runtime whole(r.device_value(), r.rank_count() * r.threads_per_rank());
    plan.peak = best_rate(sample_gemm_rates(whole, plan.settings.batch.type(), 0.2));
  }
  announce(plan);
  TrainResult result;
  comm::run_ranks(r.rank_count(), [&](comm::Group& world) {
    RankRun run(plan, world, hooks);
    TrainResult mine = run.loop();
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

}  // namespace megatron::training
