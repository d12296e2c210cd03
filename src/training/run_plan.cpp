#include "training/run_plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/requested_samples.h"
#include "tokenizers/tokenizer_file.h"
#include "training/flops.h"
#include "training/found_checkpoints.h"

namespace megatron::training {
namespace {

// The directory that gives the model's shape; empty: the flags do.
std::string shape_source(const TrainSettings& s, const Beginning& beginning) {
  if (s.run.model) {
    const std::string flag = s.shape.first_shape_flag();
    MG_CHECK(flag.empty(), "--{} and --model {} both give the model's shape; drop one", flag,
             *s.run.model);
    MG_CHECK(!s.shape.vocab_size,
             "--vocab-size {} and --model {} both give the number of tokens; drop one",
             *s.shape.vocab_size, *s.run.model);
    return resolve_model_directory(*s.run.model);
  }
  const bool by_flags = !s.shape.first_shape_flag().empty() || s.shape.vocab_size;
  return beginning.weights == nullptr || by_flags ? "" : beginning.weights->path();
}

models::GptConfig find_shape(const TrainSettings& s, const std::string& source,
                             const Vocabulary& vocabulary) {
  models::GptConfig config;
  if (source.empty()) {
    config = s.shape.to_config(*s.batch.seq_length);
    config.vocab_size = vocabulary.size;
  } else {
    config = models::config_from_hugging_face(Json::read(source + "/config.json"));
    config.hidden_dropout = s.shape.hidden_dropout.value_or(config.hidden_dropout);
    config.attention_dropout = s.shape.attention_dropout.value_or(config.attention_dropout);
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

// What all ranks hold during a step must fit the machine: weights, gradients and optimizer state,
// and at least the input of each layer and what the host holds of a micro-batch.
void check_memory(const models::GptConfig& config, const TrainSettings& s) {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  const double ranks = s.runtime.rank_count(), parameters = d(parameter_count(config));
  const bool adam = s.optimizer.config.method == optim::Method::adam;
  const double state = adam ? 8 : s.optimizer.config.sgd_momentum > 0 ? 4 : 0;
  // A checkpoint in the making is a second copy of weights and state, of all ranks together.
  const double snapshot = s.checkpoint.async_save ? parameters * (4 + state) : 0;
  const double fixed = ranks * parameters * (4 + 4 + state) + snapshot;
  const double layer_inputs =
      d(config.num_layers) * d(config.hidden_size) * size_of(s.precision.type());
  const double tokens = ranks * d(*s.batch.micro_batch_size) * d(*s.batch.seq_length);
  const double moving = tokens * (layer_inputs + sizeof(int64_t) * 2);
  const double machine = d(sysconf(_SC_PHYS_PAGES)) * d(sysconf(_SC_PAGE_SIZE));
  MG_CHECK(fixed <= machine,
           "the model has {} parameters; weights, gradients and optimizer state of {} ranks need "
           "{} and the machine has {}: use a smaller model (--num-layers {}, --hidden-size {}) or "
           "fewer --ranks",
           format_count(parameters), ranks, format_bytes(fixed), format_bytes(machine),
           config.num_layers, config.hidden_size);
  MG_CHECK(fixed + moving <= machine,
           "a micro-batch of {} sequences of {} tokens needs at least {} on {} ranks beside {} for "
           "the model, and the machine has {}: use a smaller --micro-batch-size or --seq-length",
           *s.batch.micro_batch_size, *s.batch.seq_length, format_bytes(moving), ranks,
           format_bytes(fixed), format_bytes(machine));
}

// So that a checkpoint opens with the tokenizer of the run, whatever flags made it.
NamedFiles find_companions(const Vocabulary& vocabulary, const std::string& source) {
  if (vocabulary.opens_by_itself)
    return companion_files(vocabulary.directory.empty() ? source : vocabulary.directory);
  NamedFiles companions;
  for (const tokenizers::Codec::File& file : vocabulary.tokenizer->files())
    companions.emplace_back(file.name, file.content);
  const std::string generation = source + "/generation_config.json";
  if (!source.empty() && std::filesystem::exists(generation))
    companions.emplace_back("generation_config.json", read_file(generation));
  return companions;
}

// A model that began as a Hugging Face directory keeps that directory's config.json but for the
// stored type.
SavedFiles describe_checkpoints(const RunPlan& plan, const std::string& source) {
  Json config = models::config_to_hugging_face(plan.config, plan.settings.precision.type());
  if (!source.empty()) {
    Json original = Json::read(source + "/config.json");
    original.set(original.contains("torch_dtype") ? "torch_dtype" : "dtype", config["dtype"]);
    config = std::move(original);
  } else if (plan.vocabulary.tokenizer != nullptr) {
    const tokenizers::Tokenizer& t = *plan.vocabulary.tokenizer;
    if (t.bos()) config.set("bos_token_id", *t.bos());
    if (t.eos()) config.set("eos_token_id", *t.eos());
  }
  return {std::move(config), find_companions(plan.vocabulary, source)};
}

// A model's directory brings its tokenizer, or else its number of tokens.
Vocabulary find_vocabulary(TrainSettings& s, const std::string& source) {
  if (source.empty()) return open_vocabulary(s.data, s.shape.vocab_size);
  const bool has_tokenizer = tokenizers::has_tokenizer_file(source);
  if (!s.data.tokenizer_model && !s.data.tokenizer_type && !s.data.mock_data && has_tokenizer) {
    s.data.tokenizer_model = source;
  }
  if (s.data.tokenizer_model) return open_vocabulary(s.data, {});
  return open_vocabulary(
      s.data, models::config_from_hugging_face(Json::read(source + "/config.json")).vocab_size);
}

// Weights of another shape could not be filled in; told by name, not tensor by tensor.
void check_architecture(const models::GptConfig& config,
                        const checkpoint::ModelDirectory& weights) {
  const std::string different =
      differences(models::describe(models::config_from_hugging_face(weights.config())),
                  models::describe(config));
  MG_CHECK(
      different.empty(),
      "the model that the flags describe is not the one in {}: {}. Give the flags it was trained "
      "with, or none of them: the shape is then taken from there",
      weights.path(), different);
}

void check_order(const RunSettings& run) {
  MG_CHECK(run.dataloader_type != "external",
           "--dataloader-type external hands over batches that another program makes; this program "
           "reads its own: use single or cyclic");
  MG_CHECK(run.dataloader_type == "single" || run.dataloader_type == "cyclic",
           "--dataloader-type is '{}'; single and cyclic are supported", run.dataloader_type);
  MG_CHECK(run.data_sharding || run.dataloader_type == "cyclic",
           "--no-data-sharding is of --dataloader-type cyclic; drop it");
  MG_CHECK(!run.multiple_validation_sets || run.full_validation,
           "--multiple-validation-sets needs --full-validation");
  MG_CHECK(run.validation_set_names.empty() || run.multiple_validation_sets,
           "--validation-set-names needs --multiple-validation-sets");
  MG_CHECK(!run.full_validation || run.eval_interval,
           "--full-validation needs --eval-interval: the steps between evaluations");
}

// A blend of prefixes without weights is read once only, so it may hold less than was asked for.
void check_enough(const data::Dataset& set, data::Split split, int64_t needed,
                  std::string_view remedy) {
  MG_CHECK(set.size() >= needed,
           "the run reads {} {} samples, and the data sets together have {} in one pass (prefixes "
           "without weights are mixed by size and read once): give weights, {}",
           needed, data::name(split), set.size(), remedy);
}

void open_data(RunPlan& plan) {
  const TrainSettings& s = plan.settings;
  const RunSettings& run = s.run;
  const int64_t iterations = *s.batch.train_iters, batch = *s.batch.global_batch_size;
  data::SampleBudget budget;
  budget.train_iterations = iterations;
  budget.train_samples =
      std::max(s.batch.train_samples.value_or(s.batch.total_samples()), plan.last_sample());
  budget.global_batch_size = budget.eval_global_batch_size = batch;
  budget.eval_interval = run.eval_interval.value_or(iterations + 1);
  budget.eval_iterations = run.eval_interval ? run.eval_iters : 0;
  budget.full_validation = run.full_validation;
  auto samples = data::requested_samples(budget);
  samples[static_cast<size_t>(data::Split::test)] = 0;  // nothing reads it here
  plan.corpus = open_corpus(s.data, plan.vocabulary, *s.batch.seq_length, s.runtime.seed, samples,
                            run.multiple_validation_sets);
  const data::Dataset& train = plan.corpus.set(data::Split::train);
  if (run.dataloader_type == "single")
    check_enough(train, data::Split::train, plan.last_sample(),
                 "lower --train-iters, or use --dataloader-type cyclic");
  if (!run.eval_interval) return;
  const data::Dataset& valid = plan.corpus.set(data::Split::valid);
  if (!run.full_validation)
    check_enough(valid, data::Split::valid,
                 iterations / *run.eval_interval * run.eval_iters * batch,
                 "lower --eval-iters or raise --eval-interval, or use --full-validation");
  const std::vector<std::string>& names = run.validation_set_names;
  MG_CHECK(names.empty() || names.size() == plan.corpus.validation.size(),
           "--validation-set-names has {} names, and there are {} validation sets", names.size(),
           plan.corpus.validation.size());
  for (size_t i = 0; i < names.size(); ++i) plan.corpus.validation[i].name = names[i];
}

}  // namespace

namespace {

void check_run(const TrainSettings& s) {
  const RunSettings& run = s.run;
  MG_CHECK(run.eval_iters >= 0, "--eval-iters is {}; it cannot be negative", run.eval_iters);
  MG_CHECK(!run.eval_interval || run.eval_iters > 0,
           "--eval-iters is 0 and --eval-interval {}: an evaluation needs at least one batch; drop "
           "--eval-interval",
           *run.eval_interval);
  MG_CHECK(!run.eval_interval || *run.eval_interval > 0,
           "--eval-interval is {}; it must be positive", *run.eval_interval);
  MG_CHECK(!run.sample_interval || *run.sample_interval > 0,
           "--sample-interval is {}; it must be positive", *run.sample_interval);
  MG_CHECK(run.sample_interval.has_value() == !run.sample_prompt.empty(),
           "--sample-interval and --sample-prompt TEXT go together: how often, and what the texts "
           "begin with; give both or none");
  MG_CHECK(run.sample_tokens > 0, "--sample-tokens is {}; it must be positive", run.sample_tokens);
  MG_CHECK(!s.checkpoint.finetune || run.model || s.checkpoint.load,
           "--finetune begins with the weights of --model or --load, and neither is given");
  s.log.check();
  s.checkpoint.check();
  check_order(run);
}

void check_prompts(const RunPlan& plan) {
  const RunSettings& run = plan.settings.run;
  if (!run.sample_interval) return;
  MG_CHECK(plan.vocabulary.tokenizer != nullptr,
           "--sample-interval needs a tokenizer: give --tokenizer-model");
  const int64_t room = plan.config.max_position_embeddings - 1;
  for (const std::string& prompt : run.sample_prompt) {
    const auto tokens =
        static_cast<int64_t>(plan.vocabulary.tokenizer->encode(prompt, true).size());
    MG_CHECK(tokens > 0 && tokens <= room,
             "--sample-prompt '{}' has {} tokens; between 1 and {} fit the model", prompt, tokens,
             room);
  }
}

// That the optimizer's state is of the method, the momentum and the precision of this run.
void check_optimizer_state(const TrainSettings& s, const Beginning& beginning) {
  const TrainerState& state = beginning.state;
  const std::string& path = beginning.checkpoint->path();
  MG_CHECK(
      state.has_optimizer,
      "{} was saved without optimizer state (--no-save-optim); resume with --no-load-optim: the "
      "optimizer begins anew",
      path);
  const std::string method = s.optimizer.config.method == optim::Method::adam ? "adam" : "sgd";
  MG_CHECK(state.optimizer == method,
           "{} holds the state of --optimizer {}, and this run uses {}; use the same, or "
           "--no-load-optim",
           path, state.optimizer, method);
  MG_CHECK(state.precision == name(s.precision.type()),
           "{} was trained in {}, and this run is in {}; use the same, or --no-load-optim", path,
           state.precision, name(s.precision.type()));
  const auto tensors = beginning.checkpoint->optimizer_tensors();
  const bool saved = std::ranges::any_of(
      tensors, [](const auto& tensor) { return tensor.name.starts_with("momentum_buffer."); });
  MG_CHECK(method != "sgd" || saved == (s.optimizer.config.sgd_momentum > 0),
           "{} was trained {} momentum, and --sgd-momentum is {}; use the same, or "
           "--no-load-optim",
           path, saved ? "with" : "without", s.optimizer.config.sgd_momentum);
}

// What a resumed run takes from its checkpoint, and what must not have changed.
void settle_beginning(RunPlan& plan) {
  TrainSettings& s = plan.settings;
  Beginning& beginning = plan.beginning;
  if (beginning.checkpoint == nullptr) return;
  TrainerState& state = beginning.state;
  const std::string different = schedule_differences(state, plan.learning_rate, plan.weight_decay);
  MG_CHECK(
      different.empty() || s.checkpoint.override_scheduler || s.checkpoint.use_checkpoint_scheduler,
      "the schedule is not that of {}: {}. Say which holds: --override-opt-param-scheduler for "
      "this command line, --use-checkpoint-opt-param-scheduler for the checkpoint",
      beginning.checkpoint->path(), different);
  if (s.checkpoint.use_checkpoint_scheduler) {
    plan.learning_rate = state.learning_rate;
    plan.weight_decay = state.weight_decay;
  }
  const std::string order = differences(state.data, data_settings(s));
  if (!order.empty())
    log::warning(
        "the data are not those of the checkpoint ({}): the samples that follow are others, and "
        "some may be seen twice or never",
        order);
  if (s.checkpoint.load_optimizer) {
    check_optimizer_state(s, beginning);
  } else {
    state.optimizer_steps = 0;
  }
  if (!s.checkpoint.load_rng) state.seed = s.runtime.seed;
}

// A folder that other runs' checkpoints, or other things, lie in is not written to by accident.
void claim_save_directory(RunPlan& plan, comm::Group& processes) {
  const CheckpointSettings& c = plan.settings.checkpoint;
  if (!c.save) return;
  std::error_code error;
  const SaveDirectory folder(*c.save);
  MG_CHECK(!std::filesystem::exists(*c.save, error) || folder.exists(),
           "--save {} is a file; a directory is wanted", *c.save);
  MG_CHECK(!folder.is_foreign(),
           "--save {} is not empty and is no checkpoint directory of this program; choose another",
           *c.save);
  const std::vector<int64_t> steps = folder.iterations();
  const bool own = c.load && std::filesystem::equivalent(*c.save, *c.load, error);
  MG_CHECK(steps.empty() || !own || !c.finetune || plan.settings.run.model,
           "--save {} holds a run's checkpoints up to iteration {}, and --finetune begins at step "
           "0 and would overwrite them; choose another --save, or drop --finetune to go on from "
           "them",
           *c.save, steps.back());
  MG_CHECK(
      steps.empty() || own,
      "--save {} holds a run's checkpoints up to iteration {}, which this run would overwrite; "
      "add --load {} to go on from them, choose another --save, or remove it",
      *c.save, steps.back(), *c.save);
  if (processes.rank() == 0 && folder.exists()) {
    plan.lock.emplace(folder.lock());
    folder.mend();
  }
  processes.barrier("save.directory");  // nobody looks for checkpoints before
}

// Only once all else is in order.
void make_save_directory(RunPlan& plan, comm::Group& processes) {
  const CheckpointSettings& c = plan.settings.checkpoint;
  if (!c.save || plan.lock || processes.rank() != 0) return;
  const SaveDirectory folder(*c.save);
  folder.create();
  plan.lock.emplace(folder.lock());
}

}  // namespace

int64_t RunPlan::iterations_left() const {
  return std::max<int64_t>(0, *settings.batch.train_iters - first_iteration());
}

int64_t RunPlan::last_sample() const {
  return settings.batch.schedule.samples_after(iterations_left(), beginning.state.consumed_samples);
}

RunPlan make_run_plan(const TrainSettings& given, comm::Group& processes) {
  RunPlan plan{.began = now_seconds(), .settings = given};
  TrainSettings& s = plan.settings;
  s.runtime.check();
  s.batch.finalize(s.runtime.rank_count());
  s.optimizer.config.check();
  plan.learning_rate = s.optimizer.learning_rate(s.batch);
  plan.weight_decay = s.optimizer.decay(s.batch);
  check_run(s);
  claim_save_directory(plan, processes);
  plan.beginning = find_beginning(s.checkpoint, s.checkpoint.finetune && !s.run.model, processes,
                                  s.runtime.threads_per_rank());
  plan.beginning.state.seed =
      plan.beginning.checkpoint ? plan.beginning.state.seed : s.runtime.seed;
  const std::string source = shape_source(s, plan.beginning);
  plan.vocabulary = find_vocabulary(s, source);
  plan.config = find_shape(s, source, plan.vocabulary);
  check_memory(plan.config, s);
  if (plan.beginning.weights != nullptr) {
    check_architecture(plan.config, *plan.beginning.weights);
  } else if (s.checkpoint.finetune && s.run.model) {
    ThreadPool pool(s.runtime.threads_per_rank());
    require_whole_model(source, pool);
    plan.beginning.weights = std::make_shared<const checkpoint::ModelDirectory>(source);
  }
  settle_beginning(plan);
  check_prompts(plan);
  if (s.checkpoint.save) plan.saved = describe_checkpoints(plan, source);
  open_data(plan);
  make_save_directory(plan, processes);
  return plan;
}

}  // namespace megatron::training
