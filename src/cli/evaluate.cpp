#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/command_output.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/model_directory.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "comm/processes.h"
#include "inference/end_tokens.h"
#include "post_training/masked_text.h"
#include "tasks/task_evaluation.h"
#include "tokenizers/tokenizer.h"
#include "training/device_flag.h"
#include "training/encoder_evaluation.h"
#include "training/engine_comparison.h"
#include "training/evaluation.h"
#include "training/model_comparison.h"
#include "training/model_source.h"
#include "training/score_evaluation.h"

namespace megatron::cli {
namespace {

void print_result(const training::EvaluationResult& r) {
  const auto tokens = static_cast<int64_t>(r.loss.tokens);
  if (r.documents.empty()) {
    fmt::print("{}: {} tokens of {} sequences\n", r.what, tokens, r.sequences);
  } else {
    fmt::print("{}: {} tokens of {} documents in {} sequences\n", r.what, tokens,
               r.documents.size(), r.sequences);
  }
  const double loss = r.loss.mean();
  using Kind = training::EvaluationResult::Kind;
  if (r.kind == Kind::pseudo)
    fmt::print("loss {:.4f} nats per token, each masked by itself | pseudo-perplexity {:.2f}\n",
               loss, r.perplexity());
  else
    fmt::print("loss {:.4f} nats per {}token | perplexity {:.2f}\n", loss,
               r.kind == Kind::masked ? "masked " : "", r.perplexity());
  if (r.pairs > 0)
    fmt::print("pairs: loss {:.4f} nats | accuracy {:.4f} of {} pairs of texts\n", r.pair_loss,
               r.pair_accuracy, r.pairs);
  if (const auto bits = r.bits_per_byte())
    fmt::print("{:.4f} bits per byte of text ({} bytes)\n", *bits, r.bytes);
  if (r.unigram_entropy > 0) {
    fmt::print("unigram entropy of the same tokens: {:.4f} nats; the loss is {:.1f}% {} it\n",
               r.unigram_entropy, 100 * std::abs(1 - loss / r.unigram_entropy),
               loss < r.unigram_entropy ? "below" : "above");
  }
}

training::EvaluationResult evaluated(const training::Evaluation& evaluation,
                                     comm::Processes& processes) {
  training::EvaluationResult result;
  processes.run(evaluation.settings().runtime.rank_count(), [&](comm::Group& world) {
    auto mine = evaluation.run(world);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

// --compare: each path of --input is a domain.
int run_comparison(const training::EvaluationSettings& s, const std::string& compared, bool json,
                   comm::Processes& processes) {
  MG_CHECK(!s.text.paths.empty(),
           "--compare needs --input FILE..., each of which is a domain of the table");
  MG_CHECK(!s.per_document, "--per-document does not apply to --compare; drop one of them");
  std::vector<training::DomainLosses> domains;
  for (const std::string& path : s.text.paths) {
    std::vector<training::EvaluationResult> results;
    for (const bool other : {true, false}) {
      training::EvaluationSettings one = s;
      if (other) one.model = {.load = compared, .adapter = {}, .reading = s.model.reading};
      one.text.paths = {path};
      results.push_back(
          evaluated(training::Evaluation(std::move(one), processes.lead()), processes));
    }
    if (processes.lead()) domains.push_back(training::domain_losses(path, results[0], results[1]));
  }
  if (!processes.lead()) return 0;
  fmt::print("{}", json ? training::comparison_json(domains).dump(2) + "\n"
                        : training::comparison_table(domains));
  return 0;
}

int run_evaluation(training::EvaluationSettings s, bool json, comm::Processes& processes) {
  const training::Evaluation evaluation(std::move(s), processes.lead());
  std::optional<CommandOutputFile> lines;
  if (const auto& file = evaluation.settings().per_document; file && processes.lead())
    lines.emplace(*file);
  const training::EvaluationResult result = evaluated(evaluation, processes);
  if (!processes.lead()) return 0;
  if (lines) {
    lines->write(training::document_lines(result.documents));
    lines->commit();
  }
  if (json) {
    fmt::print("{}\n", result.json().dump(2));
  } else {
    print_result(result);
  }
  return 0;
}

// Flags of `megatron eval` that tasks accept besides their own.
constexpr std::string_view kShared[] = {"load",
                                        "adapter",
                                        "tokenizer-type",
                                        "tokenizer-model",
                                        "vocab-file",
                                        "merge-file",
                                        "tokenizer-special-tokens",
                                        "vocab-extra-ids",
                                        "tiktoken-pattern",
                                        "tiktoken-num-special-tokens",
                                        "bf16",
                                        "threads",
                                        "device",
                                        "instruction-set",
                                        "json",
                                        "ignore-surplus-tensors",
                                        "inference-max-seq-length"};

bool is_of_tasks(const Field& field) {
  return field.name != "inference-max-seq-length" &&
         (field.group == "tasks" || field.group == "engine");
}

// A model with its tokenizer.
struct Loaded {
  Loaded(const training::EvaluationSettings& s, int64_t max_length)
      : directory(s.model.open("to evaluate")),
        model(models::with_context_length(models::model_of(directory), max_length)),
        tokenizer(training::open_tokenizer(s.data, training::tokenizer_directory(directory),
                                           model->vocab_size())),
        runtime(s.runtime.device_value(), s.runtime.threads_per_rank()) {
    training::require_whole_model(directory, runtime.pool());
    stage = training::load_model(directory, model, runtime, s.bf16 ? DType::bf16 : DType::f32, 0);
  }

  Json identity(bool bf16) const {
    return Json::Object{{"the model", training::fingerprint(directory)},
                        {"the tokenizer", checkpoint::fingerprint(tokenizer.path)},
                        {"--bf16", bf16}};
  }

  checkpoint::ModelDirectory directory;
  models::Model model;
  training::ModelTokenizer tokenizer;
  Runtime runtime;
  std::unique_ptr<models::Stage> stage;
};

// --tasks.
class TaskCommand {
 public:
  void fields(Fields& f) {
    settings_.fields(f);
    engine_.fields(f);
    f.common({"tasks", "num-fewshot", "limit", "output"});
  }

  bool is_asked() const { return !settings_.files.empty(); }
  const inference::EngineOptions& checked_engine() {
    engine_.check();
    return engine_.options();
  }
  int64_t max_length() const { return engine_.options().max_length; }

  // Throws Error naming a given flag that does not apply to tasks, or that applies only to them.
  void check_flags(const Fields& fields) const {
    for (const Field& field : fields.all()) {
      if (!field.given) continue;
      const bool shared = std::ranges::find(kShared, field.name) != std::end(kShared);
      MG_CHECK(!is_asked() || shared || is_of_tasks(field),
               "--{} does not apply to --tasks; drop one of them", field.name);
      MG_CHECK(is_asked() || !is_of_tasks(field),
               "--{} needs --tasks, which gives the files of tasks", field.name);
    }
  }

  // s: --load, tokenizer, precision and device are read.
  int run(const training::EvaluationSettings& s, bool json, const comm::Processes& processes) {
    MG_CHECK(processes.size() == 1,
             "eval --tasks runs in one process, but {}; start it without a launcher",
             processes.description());
    engine_.check();
    const tasks::TaskEvaluation evaluation(settings_);
    Loaded loaded(s, max_length());
    models::require_language_model(loaded.model, "megatron eval --tasks");
    const tokenizers::Tokenizer& tokenizer = *loaded.tokenizer.tokenizer;
    const std::vector<tasks::TaskResult> results = evaluation.run(
        {.stage = *loaded.stage,
         .runtime = loaded.runtime,
         .tokenizer = tokenizer,
         .options = {.engine = engine_.options(),
                     .end_tokens = inference::end_tokens(
                         {loaded.directory.path(), loaded.directory.base_path()}, tokenizer)},
         .identity = loaded.identity(s.bf16)},
        true);
    fmt::print("{}", json ? tasks::json(results).dump(2) + "\n" : tasks::table(results));
    return 0;
  }

 private:
  tasks::TaskSettings settings_;
  EngineFlags engine_;
};

// Whether --load is a model with a score head, which reads labelled texts or pairs from --input.
bool gives_scores(const training::EvaluationSettings& s) {
  return (s.model.load || s.model.adapter) &&
         models::model_of(s.model.open("to evaluate"))->score_labels() > 0;
}

int run_scores(const training::EvaluationSettings& s, const Fields& fields,
               const inference::EngineOptions& options, bool json,
               const comm::Processes& processes) {
  for (const Field& field : fields.all()) {
    const bool shared = std::ranges::find(kShared, field.name) != std::end(kShared);
    MG_CHECK(!field.given || shared || field.name == "input" || field.group == "engine",
             "--{} does not apply to a model with a score head; drop it", field.name);
  }
  MG_CHECK(!s.text.paths.empty(),
           "--input FILE... is needed: JSON lines for a model with a score head, with 'text' or "
           "'messages' and 'label' (a list for several labels of a text), for one label with "
           "'chosen' and 'rejected', for labels of words "
           "with 'tokens' and 'ner_tags', for answers with 'question', 'context' and 'answers'");
  MG_CHECK(processes.size() == 1,
           "eval of a model with a score head runs in one process, but {}; start it without a "
           "launcher",
           processes.description());
  Loaded loaded(s, options.max_length);
  const auto chat =
      tokenizers::ChatTemplate::load(training::chat_template_directory(loaded.directory));
  const corpus::ChatTokenizer tokenizer(*loaded.tokenizer.tokenizer, chat);
  const training::ScoreFiles files{.paths = s.text.paths, .tokenizer = tokenizer};
  const models::ScoredTokens scored = loaded.model->facts().scored;
  if (scored == models::ScoredTokens::each_token) {
    const auto result =
        training::evaluate_word_labels(*loaded.stage, loaded.runtime, files, options);
    fmt::print("{}", json ? result.json().dump(2) + "\n" : result.table());
  } else if (scored == models::ScoredTokens::span) {
    const auto result = training::evaluate_answers(*loaded.stage, loaded.runtime, files, options);
    fmt::print("{}", json ? result.json().dump(2) + "\n" : result.text());
  } else if (loaded.model->score_labels() == 1) {
    const auto result = training::evaluate_reward(*loaded.stage, loaded.runtime, files, options);
    fmt::print("{}", json ? result.json().dump(2) + "\n" : result.text());
  } else if (loaded.model->facts().multi_label) {
    const auto result =
        training::evaluate_multi_label(*loaded.stage, loaded.runtime, files, options);
    fmt::print("{}", json ? result.json().dump(2) + "\n" : result.table());
  } else {
    const auto result =
        training::evaluate_classifier(*loaded.stage, loaded.runtime, files, options);
    fmt::print("{}", json ? result.json().dump(2) + "\n" : result.table());
  }
  return 0;
}

// --against-engine.
int run_against_engine(const training::EvaluationSettings& s, const Fields& fields,
                       const inference::EngineOptions& options, bool json,
                       const comm::Processes& processes) {
  for (const Field& field : fields.all()) {
    const bool shared = std::ranges::find(kShared, field.name) != std::end(kShared);
    MG_CHECK(!field.given || shared || field.name == "against-engine" || field.group == "input" ||
                 field.group == "engine",
             "--{} does not apply to --against-engine; drop one of them", field.name);
  }
  MG_CHECK(!s.text.paths.empty(),
           "--against-engine needs --input FILE..., whose texts are compared");
  MG_CHECK(processes.size() == 1,
           "eval --against-engine runs in one process, but {}; start it without a launcher",
           processes.description());
  Loaded loaded(s, options.max_length);
  models::require_language_model(loaded.model, "--against-engine");
  settings::DataSettings data = s.data;
  if (!data.tokenizer_model && !data.tokenizer_type && !data.vocab_file)
    data.tokenizer_model =
        training::tokenizer_path({}, training::tokenizer_directory(loaded.directory));
  const corpus::Vocabulary vocabulary = corpus::open_vocabulary(data, loaded.model->vocab_size());
  const auto documents =
      corpus::read_documents(s.text, vocabulary, loaded.model->vocab_size(), true);
  const training::EngineComparison result =
      training::compare_with_engine(*loaded.stage, loaded.runtime, *documents, options);
  fmt::print("{}", json ? result.json().dump(2) + "\n" : result.text());
  return result.equal() ? 0 : 1;
}

}  // namespace

int evaluate(const Arguments& arguments) {
  training::EvaluationSettings s;
  bool json = false;
  Fields fields;
  s.fields(fields);
  fields.begin_group("output");
  fields.add_switch("json", &json, true, "print the result as one JSON object");
  fields.common({"json"});
  bool against_engine = false;
  fields.begin_group("evaluation");
  fields.add_switch("against-engine", &against_engine, true,
                    "compare the log-probabilities of training with those of the inference engine "
                    "on the texts of --input; fails unless they are equal in every bit");
  std::optional<std::string> compared;
  fields.add("compare", &compared,
             "directory of another model, such as that before fine-tuning: print the losses of "
             "both on each file or pattern of --input, and how much they differ");
  fields.common({"compare"});
  TaskCommand tasks;
  tasks.fields(fields);
  std::vector<std::string> notes;
  if (const auto code = parse_training(
          "megatron eval --load DIR [--adapter DIR] --data-path PREFIX | --input FILE... | --tasks "
          "FILE... [flags]",
          "Computes loss and perplexity of a model on held-out documents of a data set (--split) "
          "or on text, or its scores on tasks (multiple choice, generation). The numbers do not "
          "depend on the number of ranks. An encoder is evaluated on masked tokens of a data set, "
          "or "
          "by its pseudo-perplexity on text (--input); an encoder-decoder on masked spans of a "
          "data "
          "set, or on pairs of texts (--input); a classifier on texts with labels, a reward "
          "model on pairs (--input).",
          fields, arguments, notes)) {
    return *code;
  }
  return with_processes("eval", fields, [&](comm::Processes& processes) {
    for (const std::string& note : notes) log::info("{}", note);
    return naming_places(fields, [&] {
      training::begin_on_device(s.runtime);
      const bool scores = !against_engine && !tasks.is_asked() && gives_scores(s);
      if (!scores && !against_engine) tasks.check_flags(fields);
      s.max_length = tasks.max_length();
      s.pair_objective = std::make_shared<const post_training::MaskedTextObjective>(true, 0.0);
      s.runtime.join(processes);
      if (against_engine)
        return run_against_engine(s, fields, tasks.checked_engine(), json, processes);
      if (compared && !tasks.is_asked() && !scores)
        return run_comparison(s, *compared, json, processes);
      if (scores) return run_scores(s, fields, tasks.checked_engine(), json, processes);
      return tasks.is_asked() ? tasks.run(s, json, processes) : run_evaluation(s, json, processes);
    });
  });
}

}  // namespace megatron::cli
