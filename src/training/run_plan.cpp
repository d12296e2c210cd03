#include "training/run_plan.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "inference/end_tokens.h"
#include "models/adapters/lora_config.h"
#include "plan/page.h"
#include "resume/found_checkpoints.h"
#include "training/adapter_run.h"
#include "training/derived_settings.h"
#include "training/resumed_run.h"
#include "training/run_model.h"
#include "training/settle.h"

namespace megatron::training {
namespace {

int64_t source_tokens(const ShapeSource& source) {
  return models::model_from_config_json(source.config, source.path())->vocab_size();
}

ShapeSource shape_source(const settings::TrainSettings& s, const resume::StartingPoint& start) {
  if (s.run.model)
    return directory_source(resume::resolve_model_directory(*s.run.model, "--model"));
  if (s.checkpoint.use_checkpoint_args && start.weights != nullptr)
    return directory_source(start.weights->path());
  if (s.run.model_config) return config_source(s);
  const bool by_flags = !s.shape.first_shape_flag().empty() || s.shape.vocab_size;
  if (start.weights == nullptr || by_flags) return {};
  return directory_source(start.weights->path());
}

// Files to save with a checkpoint so that it opens with the run's tokenizer and chat template,
// whichever flags selected them. chat_template: file that replaces the template next to the
// tokenizer. Generation settings come from the model's directory, or else from the tokenizer's.
NamedFiles find_companions(const corpus::Vocabulary& vocabulary, const std::string& source,
                           const std::optional<std::string>& chat_template) {
  const std::string& tokenizer = vocabulary.directory.empty() ? source : vocabulary.directory;
  NamedFiles companions;
  if (vocabulary.opens_by_itself) {
    companions = tokenizer_files(tokenizer);
  } else {
    for (const tokenizers::Codec::File& file : vocabulary.tokenizer->files())
      companions.emplace_back(file.name, file.content);
  }
  NamedFiles generation = generation_files(source);
  if (generation.empty()) generation = generation_files(tokenizer);
  NamedFiles chat = chat_template_files(tokenizer);
  if (chat_template) chat = {{"chat_template.jinja", read_file(*chat_template)}};
  for (NamedFiles& files : std::array{std::move(chat), std::move(generation)})
    companions.insert(companions.end(), files.begin(), files.end());
  return companions;
}

// A model from a Hugging Face directory keeps that directory's config.json except for the stored
// type; a model upcycled from a dense one has a new config.
Json describe_model(const RunPlan& plan, const ShapeSource& source) {
  Json config = plan.model->config_json(plan.settings.precision.type());
  if (plan.settings.checkpoint.upcycle) {
    for (const auto* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (const Json* id = source.config.find(key); id != nullptr && !id->is_null())
        config.set(key, *id);
  } else if (!source.directory.empty()) {
    Json original = source.config;
    if (plan.model->score_labels() > 0)
      for (const auto* key :
           {"architectures", "id2label", "label2id", "problem_type", "pad_token_id"}) {
        const Json* value = config.find(key);
        if (value != nullptr) original.set(key, *value);
        else if (original.contains(key)) original.set(key, Json());
      }
    constexpr std::string_view kDepths = "num_nextn_predict_layers";
    if (original.contains(kDepths) && config.contains(kDepths))
      original.set(std::string(kDepths), config[kDepths]);
    const Json* const stored = config.find("torch_dtype");  // as transformers before version 5
    original.set(original.contains("torch_dtype") ? "torch_dtype" : "dtype",
                 stored != nullptr ? *stored : config["dtype"]);
    config = std::move(original);
  } else if (plan.vocabulary.tokenizer != nullptr) {
    const tokenizers::Tokenizer& t = *plan.vocabulary.tokenizer;
    if (t.bos()) config.set("bos_token_id", *t.bos());
    if (t.eos()) config.set("eos_token_id", *t.eos());
  }
  return config;
}

// The directory of an adapter has a config.json if it names the classes of a head.
SavedFiles describe_checkpoints(const RunPlan& plan, const ShapeSource& source) {
  SavedFiles files{.config = describe_model(plan, source),
                   .companions = find_companions(plan.vocabulary, source.directory,
                                                 plan.settings.data.chat_template)};
  if (plan.model->adapter() == nullptr) return files;
  Json config =
      std::exchange(files.config, adapter_config(plan.model, plan.start.weights->base_path()));
  if (plan.model->score_labels() == 0) return files;
  Json::Object own = config.as_object();
  std::erase_if(own,
                [](const Json::Member& key) { return key.first == checkpoint::kAdapterConfig; });
  files.companions.emplace_back(checkpoint::kConfig, Json(std::move(own)).dump(2, true) + "\n");
  return files;
}

// Samples end at the same tokens as texts generated from the run's checkpoints.
std::vector<int32_t> find_end_tokens(const RunPlan& plan, const ShapeSource& source) {
  std::vector<inference::NamedConfig> configs;
  for (const auto& [name, content] :
       find_companions(plan.vocabulary, source.directory, plan.settings.data.chat_template))
    if (name == "generation_config.json") configs.push_back({name, Json::parse(content, name)});
  configs.push_back({"config.json", describe_model(plan, source)});
  return inference::end_tokens(configs, *plan.vocabulary.tokenizer);
}

// A model's directory brings its tokenizer (take_tokenizer()), or else its number of tokens.
corpus::Vocabulary find_vocabulary(const settings::TrainSettings& s, const ShapeSource& source) {
  if (!source) return corpus::open_vocabulary(s.data, s.shape.vocab_size);
  if (s.data.tokenizer_model || (s.run.model && s.data.vocab_file))
    return corpus::open_vocabulary(s.data, s.run.model ? s.shape.vocab_size : std::nullopt);
  return corpus::open_vocabulary(s.data, source_tokens(source));
}

// Grows the vocabulary of a directory's model to --vocab-size, or else to the tokenizer's size, if
// that is larger. Returns the vocabulary of the run and sets the new size in `source`.
template <class FindVocabulary>
corpus::Vocabulary grow_vocabulary(const settings::TrainSettings& s, ShapeSource& source,
                                   const FindVocabulary& find) {
  if (!s.run.model || s.checkpoint.upcycle) return find();
  const std::optional<int64_t>& asked = s.shape.vocab_size;
  const int64_t stored = source_tokens(source);
  MG_CHECK(!asked || *asked >= stored,
           "--vocab-size is {}, but the model in {} has {} tokens, and none can be removed; give "
           "{} or more",
           asked.value_or(0), source.name, stored, stored);
  if (asked) source.config.set("vocab_size", *asked);
  corpus::Vocabulary vocabulary = find();
  if (!asked && vocabulary.size > stored) source.config.set("vocab_size", vocabulary.size);
  return vocabulary;
}

// Usual number of tokens of a tokenizer of this type; 0: unknown.
int64_t usual_vocabulary(const std::string& type) {
  if (type == "GPT2BPETokenizer") return 50257;
  if (type == "TikTokenizer") return 131072;
  if (type.starts_with("BertWordPiece")) return 30522;
  if (type == "Llama2Tokenizer" || type.ends_with("SentencePieceTokenizer")) return 32000;
  return type == "HuggingFaceTokenizer" || type == "SFTTokenizer" ? 128256 : 0;
}

// The vocabulary of a run. A plan needs no tokenizer: if its files are missing, only the number of
// tokens is known.
corpus::Vocabulary vocabulary_for_plan(const settings::TrainSettings& s, const ShapeSource& source,
                                       std::optional<SettingNote>& assumed, bool& stands_in) {
  std::error_code error;
  const auto absent = [&](const std::optional<std::string>& path) {
    return path && !std::filesystem::exists(*path, error);
  };
  const bool missing = absent(s.data.tokenizer_model) || absent(s.data.vocab_file);
  const std::string type = s.data.type_by_flags().value_or("HuggingFaceTokenizer");
  if (!missing || usual_vocabulary(type) == 0) return find_vocabulary(s, source);
  const int64_t size = source ? models::model_from_config_json(source.config)->vocab_size()
                              : s.shape.vocab_size.value_or(usual_vocabulary(type));
  if (!source && !s.shape.vocab_size)
    assumed = {
        "vocab-size", std::to_string(size),
        fmt::format("{} does not exist; this is the usual size for --tokenizer-type {}",
                    s.data.tokenizer_model ? *s.data.tokenizer_model : *s.data.vocab_file, type)};
  stands_in = true;
  settings::TokenizerSettings numbers = s.data;
  for (auto* file : {&numbers.tokenizer_model, &numbers.vocab_file, &numbers.merge_file})
    file->reset();
  numbers.tokenizer_type = "NullTokenizer";
  return corpus::open_vocabulary(numbers, size);
}

// Weights of another shape could not be filled in: reported by name, not tensor by tensor. The
// model's head may be another one than that of the weights.
void check_architecture(const RunPlan& plan, const checkpoint::ModelDirectory& weights) {
  const models::Model& model = plan.model;
  models::Model stored = models::model_of(weights);
  if (plan.new_head) stored = plan.task->model(stored, plan.vocabulary);
  const models::ModelFacts& now = model->facts();
  if (now.prediction.depths > 0)
    stored = stored->with({.prediction = {{.depths = stored->facts().prediction.left_out}}});
  const std::vector<std::string>& names = stored->facts().label_names;
  if (weights.is_adapter() && names.size() == now.label_names.size() && !names.empty() &&
      names[0] == "LABEL_0")  // PEFT does not say the names of an adapter's head
    stored = stored->with({.score_head = models::ScoreHead{.label_names = now.label_names,
                                                           .padding = now.score_padding,
                                                           .multi_label = now.multi_label}});
  const std::string different = resume::differences(stored->describe(), model->describe());
  MG_CHECK(different.empty(),
           "the model described by the flags differs from the one in {}: {}. Give the flags it was "
           "trained with, or none of them, and the shape is taken from the checkpoint",
           weights.path(), different);
}

// A blend of prefixes without weights is read once only, so it may hold less than was asked for.
void check_enough(const data::Dataset& set, data::Split split, int64_t needed,
                  std::string_view suggestion) {
  MG_CHECK(set.size() >= needed,
           "the run reads {} {} samples, but the data sets together have only {} in one pass "
           "(prefixes without weights are mixed by size and read once): give weights, {}",
           needed, data::name(split), set.size(), suggestion);
}

// Settles the schedules of a run whose number of steps is known.
void settle_schedules(RunPlan& plan, const settings::TrainSettings& s) {
  plan.learning_rate = s.optimizer.learning_rate(s.batch);
  plan.weight_decay = s.optimizer.decay(s.batch);
}

// Opens the data of the run's task, and counts the steps of --epochs.
void open_examples(RunPlan& plan) {
  const settings::TrainSettings& s = plan.settings;
  ThreadPool pool(s.runtime.threads_per_rank());
  // The order of rows of examples does not depend on how many are asked for; that of token files of
  // sentences does.
  std::array<int64_t, 3> ordered{};
  const auto asked = [&] {
    RunSamples samples = samples_of_run(s, plan.last_sample());
    for (size_t i = 0; i < samples.asked.size(); ++i) {
      if (!samples.asked[i] || samples.extended[i] <= *samples.asked[i]) continue;
      ordered[i] = *samples.asked[i];
      samples.asked[i] = samples.extended[i];
    }
    return samples.asked;
  };
  const auto before = asked();
  const auto counted = [&](int64_t rows) {
    if (!s.batch.epochs) return before;
    const Settled steps = count_epochs(s, rows);
    plan.settings.batch = steps.settings.batch;
    plan.notes.insert(plan.notes.end(), steps.notes.begin(), steps.notes.end());
    return asked();
  };
  plan.corpus = plan.task->open({.settings = s.data,
                                 .vocabulary = plan.vocabulary,
                                 .seq_length = *s.batch.seq_length,
                                 .seed = s.runtime.seed,
                                 .decoder_length = s.batch.labelled_length(),
                                 .wanted = {before[0] != 0, before[1] != 0, before[2] != 0},
                                 .samples = counted,
                                 .ordered = ordered,
                                 .pool = pool,
                                 .by_source = s.run.multiple_validation_sets},
                                plan.model, plan.end_tokens);
}

void open_data(RunPlan& plan) {
  const settings::TrainSettings& s = plan.settings;
  const settings::RunSettings& run = s.run;
  const int64_t iterations = *s.batch.train_iters;
  const RunSamples samples = samples_of_run(s, plan.last_sample());
  plan.train_samples = samples.asked[static_cast<size_t>(data::Split::train)].value_or(0);
  if (plan.task != nullptr) {
    if (!s.batch.epochs) open_examples(plan);
  } else {
    plan.corpus =
        corpus::open_corpus(s.data, plan.vocabulary, *s.batch.seq_length, s.runtime.seed,
                            samples.asked, run.multiple_validation_sets, samples.extended);
  }
  const data::Dataset& train = plan.corpus.set(data::Split::train);
  if (run.dataloader_type == "single")
    check_enough(train, data::Split::train, plan.last_sample(),
                 "lower --train-iters, or use --dataloader-type cyclic");
  if (!run.eval_interval && !run.skip_train) return;
  const int64_t evaluations = run.skip_train ? 1 : run.evaluations_before(iterations + 1);
  const data::Dataset& valid = plan.corpus.set(data::Split::valid);
  if (!run.full_validation)
    check_enough(valid, data::Split::valid, evaluations * run.eval_iters * s.eval_batch(),
                 "lower --eval-iters or raise --eval-interval, or use --full-validation");
  const std::vector<std::string>& names = run.validation_set_names;
  corpus::check_names(names, plan.corpus.validation.size());
  for (size_t i = 0; i < names.size(); ++i) plan.corpus.validation[i].name = names[i];
}

void check_prompts(const settings::RunSettings& run, const corpus::Vocabulary& vocabulary,
                   const models::Model& model) {
  if (!run.sample_interval) return;
  MG_CHECK(vocabulary.tokenizer != nullptr,
           "--sample-interval needs a tokenizer: give --tokenizer-model");
  const int64_t room = model->context_length() - 1;
  for (const std::string& prompt : run.sample_prompt) {
    const auto tokens = static_cast<int64_t>(vocabulary.tokenizer->encode(prompt, true).size());
    MG_CHECK(tokens > 0 && tokens <= room,
             "--sample-prompt '{}' has {} tokens; the model takes 1 to {}", prompt, tokens, room);
  }
}

// True if the run's own checkpoints take precedence over --pretrained-checkpoint.
bool load_has_checkpoint(const settings::CheckpointSettings& c) {
  return c.pretrained_checkpoint && c.load && !resume::SaveDirectory(*c.load).iterations().empty();
}

// Prevents accidental writes to a folder that holds other runs' checkpoints or other files.
void claim_save_directory(const settings::TrainSettings& s, comm::Group& processes,
                          std::optional<resume::SaveDirectory::Lock>& lock) {
  const settings::CheckpointSettings& c = s.checkpoint;
  if (!c.save) return;
  std::error_code error;
  const resume::SaveDirectory folder(*c.save);
  MG_CHECK(!std::filesystem::exists(*c.save, error) || folder.exists(),
           "--save {} is a file; give a directory", *c.save);
  MG_CHECK(!folder.is_foreign(),
           "--save {} is not empty and is not a checkpoint directory of this program; choose "
           "another",
           *c.save);
  const std::vector<int64_t> steps = folder.iterations();
  const bool own = c.load && std::filesystem::equivalent(*c.save, *c.load, error);
  MG_CHECK(steps.empty() || !own || !c.finetune || s.run.model,
           "--save {} contains a run's checkpoints up to iteration {}, and --finetune starts at "
           "step 0 and would overwrite them; choose another --save, or drop --finetune to resume "
           "from them",
           *c.save, steps.back());
  MG_CHECK(steps.empty() || own || !c.upcycle,
           "--save {} contains a run's checkpoints up to iteration {}, and --moe-use-upcycling "
           "starts a new one; to resume from them, drop it and its flags and give only --load {}; "
           "otherwise choose another --save",
           *c.save, steps.back(), *c.save);
  MG_CHECK(steps.empty() || own,
           "--save {} contains a run's checkpoints up to iteration {}, which this run would "
           "overwrite; add --load {} to resume from them, choose another --save, or remove it",
           *c.save, steps.back(), *c.save);
  if (processes.rank() == 0 && folder.exists()) {
    lock.emplace(folder.lock());
    folder.recover();
  }
  processes.barrier("save.directory");  // other ranks look for checkpoints only after this
}

// Called only after all other checks have passed.
void make_save_directory(RunPlan& plan, comm::Group& processes) {
  const settings::CheckpointSettings& c = plan.settings.checkpoint;
  if (!c.save || plan.lock || processes.rank() != 0) return;
  const resume::SaveDirectory folder(*c.save);
  folder.create();
  plan.lock.emplace(folder.lock());
}

// Immediately refuses models that no flags can make fit and whose plan would take long: estimates
// weights, gradients and moments in the fewest possible bytes, divided among all ranks.
void check_feasible(const settings::TrainSettings& s, const models::Model& model) {
  if (s.runtime.device_kind() != DeviceKind::cpu || available_memory() == 0) return;
  constexpr double kMinBytes = 4, kTimes = 4;
  const double parameters = static_cast<double>(model->parameter_count());
  const double share = static_cast<double>(s.runtime.ranks_here()) / s.runtime.rank_count();
  const double least = kMinBytes * parameters * share;
  MG_CHECK(least <= kTimes * static_cast<double>(available_memory()),
           "a model of {} parameters (--num-layers {}, --hidden-size {}) needs more than {}, but "
           "this process has {}: use a smaller model, or more machines (megatron plan shows what a "
           "run needs)",
           format_count(parameters), model->num_layers(), model->hidden_size(), format_bytes(least),
           available_memory_text());
}

// base: --model, or the model that takes its place; "": neither is given.
resume::StartingPoint find_starting_point(const settings::TrainSettings& s, const std::string& base,
                                          comm::Group& processes) {
  resume::StartingPoint start =
      resume::find_starting_point(s.checkpoint, s.checkpoint.finetune && !s.run.model, processes,
                                  s.runtime.threads_per_rank(), base);
  if (start.checkpoint == nullptr) start.state.seed = s.runtime.seed;
  return start;
}

// The vocabulary and the model of settled settings, and how ranks divide it; `source` gets the
// number of tokens that it grows to.
template <class FindVocabulary>
SettledRun with_model(Settled settled, ShapeSource& source, const FindVocabulary& find,
                      std::shared_ptr<const Task> task,
                      const std::function<models::Model(const models::Model&)>& composed = {}) {
  SettledRun run;
  run.task = std::move(task);
  settled.pass(take_tokenizer, source.directory);
  run.vocabulary =
      grow_vocabulary(settled.settings, source, [&] { return find(settled.settings, source); });
  run.model = model_of_run(settled.settings, source, run.vocabulary, run.task.get());
  if (composed) run.model = composed(run.model);
  settled.pass(divide, run.model);
  settled.pass(freeze, run.model);
  run.settings = std::move(settled.settings);
  run.notes = std::move(settled.notes);
  return run;
}

// stored: number of tokens in the directory from which the model is loaded.
Derivation derivation_of(const SettledRun& run, const settings::TrainSettings& given,
                         const ShapeSource& source, int64_t stored) {
  return {.given = given,
          .settings = run.settings,
          .model = run.model,
          .vocabulary = run.vocabulary,
          .shape_source = source.name,
          .grown = run.settings.run.model && run.model->vocab_size() > stored,
          .stages = run.notes};
}

// Plans the resources of the run. Throws Error if they are not available.
plan::Plan expected_of(RunPlan& plan, bool lead) {
  check_feasible(plan.settings, plan.model);
  plan::Plan expected = make_plan(plan.settings, plan.model, plan.vocabulary, {.task = plan.task},
                                  plan.start.state.consumed_samples);
  if (!expected.fits() && lead)
    for (const std::string& line : plan::summary(expected)) log::info("{}", line);
  require_memory(expected);
  return expected;
}

// The weights of --model, with those of --adapter.
std::shared_ptr<const checkpoint::ModelDirectory> first_weights(const settings::TrainSettings& s,
                                                                const std::string& model) {
  checkpoint::ReadingOptions reading = s.checkpoint.reading;
  if (s.adapters.directory) {
    reading.base = model;
    ThreadPool pool(s.runtime.threads_per_rank());
    resume::require_whole_model(*s.adapters.directory, pool);
  }
  return std::make_shared<const checkpoint::ModelDirectory>(s.adapters.directory.value_or(model),
                                                            reading);
}

// Finds the initial weights of a run that does not continue from a checkpoint.
void find_weights(RunPlan& plan, const ShapeSource& source, int64_t stored) {
  const settings::TrainSettings& s = plan.settings;
  const auto has_head = [&](const models::Model& stored) {
    return stored->score_labels() > 0 || plan.model->score_labels() == 0;
  };
  if (plan.start.weights != nullptr) {
    if (plan.start.checkpoint == nullptr && s.adapters.directory)
      plan.start.weights = first_weights(s, plan.start.weights->path());
    plan.new_head = !has_head(models::model_of(*plan.start.weights));
    check_architecture(plan, *plan.start.weights);
    if (plan.start.checkpoint != nullptr) check_same_adapter(plan.model, *plan.start.weights);
    return;
  }
  if (!(s.checkpoint.finetune || s.checkpoint.upcycle) || !s.run.model) return;
  ThreadPool pool(s.runtime.threads_per_rank());
  resume::require_whole_model(source.directory, pool);
  plan.start.weights = first_weights(s, source.directory);
  plan.new_head = !has_head(models::model_of(*plan.start.weights));
  if (plan.model->vocab_size() > stored) plan.stored_tokens = stored;
  if (s.checkpoint.upcycle)
    plan.upcycled = {
        .experts = upcycled_model(s, source),
        .dense = whole_model(models::model_from_config_json(source.config, source.path()),
                             s.precision.type())};
}

}  // namespace

bool RunPlan::evaluates_test_set() const { return settings.run.evaluates_test_set(); }

int64_t RunPlan::iterations_left() const {
  return std::max<int64_t>(0, *settings.batch.train_iters - first_iteration());
}

int64_t RunPlan::last_sample() const {
  return settings.batch.schedule.samples_after(iterations_left(), start.state.consumed_samples);
}

SettledRun settle_run(const settings::TrainSettings& given, std::shared_ptr<const Task> task) {
  Settled settled = settle_planned(given);
  const settings::TrainSettings& s = settled.settings;
  s.runtime.limit_instruction_set();
  const bool by_flags = !s.shape.first_shape_flag().empty();
  ShapeSource source;
  if (s.run.model) {
    source = directory_source(resume::resolve_model_directory(*s.run.model, "--model"));
  } else if (s.run.model_config) {
    source = config_source(s);
  } else if (!by_flags && s.checkpoint.load) {
    source = directory_source(resume::resolve_model_directory(*s.checkpoint.load, "--load"));
  }
  std::optional<SettingNote> assumed;
  bool stands_in = false;
  const int64_t stored = s.run.model ? source_tokens(source) : 0;
  SettledRun run = with_model(
      std::move(settled), source,
      [&](const auto& now, const auto& of) {
        return vocabulary_for_plan(now, of, assumed, stands_in);
      },
      std::move(task));
  run.stands_in = stands_in;
  if (!run.stands_in) {
    check_prompts(run.settings.run, run.vocabulary, run.model);
    corpus::check_masks(run.settings.data, run.vocabulary);
  }
  run.notes = derived_settings(derivation_of(run, given, source, stored));
  if (assumed) {
    std::erase_if(run.notes, [&](const SettingNote& n) { return n.flag == assumed->flag; });
    run.notes.push_back(*assumed);
  }
  return run;
}

RunPlan make_run_plan(const settings::TrainSettings& given, comm::Group& processes,
                      const std::function<models::Model(const models::Model&)>& composed,
                      std::shared_ptr<const Task> task) {
  RunPlan plan;
  plan.began = now_seconds();
  Settled settled = settle(given);
  settled.settings.runtime.limit_instruction_set();
  settle_schedules(plan, settled.settings);
  settled.pass(take_pretrained, load_has_checkpoint(settled.settings.checkpoint));
  claim_save_directory(settled.settings, processes, plan.lock);
  plan.start = find_starting_point(settled.settings, given_base(given), processes);
  ShapeSource source = shape_source(settled.settings, plan.start);
  const int64_t stored = settled.settings.run.model ? source_tokens(source) : 0;
  static_cast<SettledRun&>(plan) =
      with_model(std::move(settled), source, find_vocabulary, std::move(task), composed);
  const settings::TrainSettings& s = plan.settings;
  check_prompts(s.run, plan.vocabulary, plan.model);
  if (s.run.sample_interval || plan.task != nullptr)
    plan.end_tokens = find_end_tokens(plan, source);
  if (!plan.settings.data.reads_tokens()) find_examples(plan);
  if (s.batch.epochs) {
    open_examples(plan);
    plan.corpus.set(data::Split::train);  // throws if there is none
    settle_schedules(plan, s);
  }
  plan.expected = expected_of(plan, processes.rank() == 0);
  find_weights(plan, source, stored);
  plan.base = check_base(plan);
  plan.reference = find_reference(plan, given);
  settle_beginning(plan);
  if (s.checkpoint.save) plan.saved = describe_checkpoints(plan, source);
  check_extension(plan);
  open_data(plan);
  check_data_order(plan);
  make_save_directory(plan, processes);
  Derivation derivation = derivation_of(plan, given, source, stored);
  if (plan.start.checkpoint != nullptr) {
    derivation.resumed = &plan.start.state;
    derivation.resumed_from = plan.start.checkpoint->path();
  }
  plan.notes = derived_settings(derivation);
  if (s.checkpoint.save || plan.start.weights != nullptr || plan.reference)
    plan.whole =
        whole_model(plan.model, s.precision.type(), &s.optimizer.config, s.optimizer.freeze);
  plan.whole.new_head = plan.new_head;
  return plan;
}

}  // namespace megatron::training
