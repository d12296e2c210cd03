#include "training/run_plan.h"

#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/progress.h"
#include "data/requested_samples.h"
#include "tokenizers/tokenizer_file.h"
#include "training/flops.h"

namespace megatron::training {
namespace {

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

// What all ranks hold during a step must fit the machine: weights, gradients and optimizer state,
// and at least the input of each layer and what the host holds of a micro-batch.
void check_memory(const models::GptConfig& config, const TrainSettings& s) {
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  const double ranks = s.runtime.rank_count(), parameters = d(parameter_count(config));
  const bool adam = s.optimizer.config.method == optim::Method::adam;
  const double state = adam ? 8 : s.optimizer.config.sgd_momentum > 0 ? 4 : 0;
  const double fixed = ranks * parameters * (4 + 4 + state);
  const double layer_inputs =
      d(config.num_layers) * d(config.hidden_size) * size_of(s.batch.type());
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
Companions find_companions(const Vocabulary& vocabulary, const std::string& model) {
  if (vocabulary.opens_by_itself)
    return {.copied = companion_files(vocabulary.directory.empty() ? model : vocabulary.directory)};
  Companions companions;
  for (const tokenizers::Codec::File& file : vocabulary.tokenizer->files())
    companions.written.emplace_back(file.name, file.content);
  const std::string generation = model + "/generation_config.json";
  if (!model.empty() && std::filesystem::exists(generation)) companions.copied = {generation};
  return companions;
}

// A model that began as a Hugging Face directory keeps that directory's config.json but for the
// stored type.
void describe_checkpoints(RunPlan& plan) {
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
  plan.saved_companions = find_companions(plan.vocabulary, model);
}

// --model DIR brings its tokenizer, or else its number of tokens.
Vocabulary find_vocabulary(TrainSettings& s) {
  if (!s.run.model) return open_vocabulary(s.data, s.shape.vocab_size);
  MG_CHECK(!s.shape.vocab_size,
           "--vocab-size {} and --model {} both give the number of tokens; drop one",
           *s.shape.vocab_size, *s.run.model);
  const std::string model = resolve_model_directory(*s.run.model);
  const bool has_tokenizer = tokenizers::has_tokenizer_file(model);
  if (!s.data.tokenizer_model && !s.data.tokenizer_type && !s.data.mock_data && has_tokenizer) {
    s.data.tokenizer_model = model;
  }
  if (s.data.tokenizer_model) return open_vocabulary(s.data, {});
  return open_vocabulary(
      s.data, models::config_from_hugging_face(Json::read(model + "/config.json")).vocab_size);
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
  budget.train_samples = s.batch.train_samples.value_or(s.batch.total_samples());
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
    check_enough(train, data::Split::train, s.batch.total_samples(),
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

RunPlan make_run_plan(const TrainSettings& given) {
  RunPlan plan{.settings = given};
  TrainSettings& s = plan.settings;
  s.runtime.check();
  const int ranks = s.runtime.rank_count();
  s.batch.finalize(ranks);
  s.optimizer.config.check();
  plan.learning_rate = s.optimizer.learning_rate(s.batch);
  plan.weight_decay = s.optimizer.decay(s.batch);
  MG_CHECK(s.run.log_interval > 0, "--log-interval is {}; it must be positive", s.run.log_interval);
  MG_CHECK(s.run.eval_iters >= 0, "--eval-iters is {}; it cannot be negative", s.run.eval_iters);
  MG_CHECK(!s.run.eval_interval || s.run.eval_iters > 0,
           "--eval-iters is 0 and --eval-interval {}: an evaluation needs at least one batch; drop "
           "--eval-interval",
           *s.run.eval_interval);
  MG_CHECK(!s.run.eval_interval || *s.run.eval_interval > 0,
           "--eval-interval is {}; it must be positive", *s.run.eval_interval);
  MG_CHECK(!s.run.save_interval || *s.run.save_interval > 0,
           "--save-interval is {}; it must be positive", *s.run.save_interval);
  MG_CHECK(!s.run.finetune || s.run.model,
           "--finetune begins with the weights of --model, which is not given");
  check_order(s.run);
  if (s.run.save) plan.save.emplace(*s.run.save);
  plan.vocabulary = find_vocabulary(s);
  plan.config = find_shape(s, plan.vocabulary);
  check_memory(plan.config, s);
  if (plan.save) describe_checkpoints(plan);
  if (s.run.finetune) {
    plan.initial_weights =
        std::make_unique<checkpoint::ModelDirectory>(resolve_model_directory(*s.run.model));
  }
  open_data(plan);
  if (plan.save) plan.save->create();
  return plan;
}

}  // namespace megatron::training
