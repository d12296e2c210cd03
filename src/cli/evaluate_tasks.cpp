#include "cli/evaluate_tasks.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/model_directory.h"
#include "inference/end_tokens.h"
#include "resume/found_checkpoints.h"
#include "tokenizers/tokenizer.h"
#include "training/model_source.h"

namespace megatron::cli {
namespace {

// Flags of `megatron eval` that tasks accept besides their own.
constexpr std::string_view kShared[] = {"load",
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
      : directory(resume::resolve_model_directory(*s.load), s.reading),
        model(models::with_context_length(models::model_from_directory(directory.path()),
                                          max_length)),
        tokenizer(training::open_tokenizer(s.data, directory.path(), model->vocab_size())),
        runtime(s.runtime.device_value(), s.runtime.threads_per_rank()) {
    models::require_language_model(model, "megatron eval");
    resume::require_whole_model(directory.path(), runtime.pool());
    stage = training::load_model(directory, model, runtime, s.bf16 ? DType::bf16 : DType::f32, 0);
  }

  Json identity(bool bf16) const {
    return Json::Object{{"the model", checkpoint::fingerprint(directory.path())},
                        {"the tokenizer", checkpoint::fingerprint(tokenizer.path)},
                        {"--bf16", bf16}};
  }

  checkpoint::ModelDirectory directory;
  models::Model model;
  training::ModelTokenizer tokenizer;
  Runtime runtime;
  std::unique_ptr<models::Stage> stage;
};

}  // namespace

void TaskCommand::fields(Fields& f) {
  settings_.fields(f);
  engine_.fields(f);
  f.common({"tasks", "num-fewshot", "limit", "output"});
}

void TaskCommand::check_flags(const Fields& fields) const {
  for (const Field& field : fields.all()) {
    if (!field.given) continue;
    const bool shared = std::ranges::find(kShared, field.name) != std::end(kShared);
    MG_CHECK(!is_asked() || shared || is_of_tasks(field),
             "--{} has nothing to do with --tasks; drop one of them", field.name);
    MG_CHECK(is_asked() || !is_of_tasks(field), "--{} needs --tasks: the files of tasks",
             field.name);
  }
}

int TaskCommand::run(const training::EvaluationSettings& s, bool json,
                     const comm::Processes& processes) {
  MG_CHECK(processes.size() == 1, "eval --tasks runs in one process, but {}; start it alone",
           processes.description());
  MG_CHECK(s.load.has_value(), "--load DIR is needed: the model to evaluate");
  engine_.check();
  const tasks::TaskEvaluation evaluation(settings_);
  Loaded loaded(s, max_length());
  const tokenizers::Tokenizer& tokenizer = *loaded.tokenizer.tokenizer;
  const std::vector<tasks::TaskResult> results = evaluation.run(
      {.stage = *loaded.stage,
       .runtime = loaded.runtime,
       .tokenizer = tokenizer,
       .options = {.engine = engine_.options(),
                   .end_tokens = inference::end_tokens(loaded.directory.path(), tokenizer)},
       .identity = loaded.identity(s.bf16)},
      true);
  fmt::print("{}", json ? tasks::json(results).dump(2) + "\n" : tasks::table(results));
  return 0;
}

}  // namespace megatron::cli
