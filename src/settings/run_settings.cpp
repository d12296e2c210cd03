#include "settings/run_settings.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "base/text_parts.h"
#include "settings/recipes.h"

namespace megatron::settings {

void RunSettings::fields(Fields& f) {
  const auto evaluated = [this] {
    return eval_interval || skip_train ? ""
                                       : "--eval-interval is not given, so nothing is evaluated";
  };
  f.begin_group("evaluation");
  f.add("eval-interval", &eval_interval,
        "steps between evaluations on the validation split; default: none")
      .in_short_help();
  f.add("eval-iters", &eval_iters, "global batches per evaluation; 0: no evaluation")
      .in_short_help()
      .of(evaluated);
  f.add("eval-global-batch-size", &eval_global_batch_size,
        "global batch size for evaluation; default --global-batch-size")
      .of(evaluated);
  f.add("eval-micro-batch-size", &eval_micro_batch_size,
        "micro-batch size for evaluation; default --micro-batch-size; does not change the loss "
        "(except through the scales of --fp8-recipe tensorwise and --fp4-format)")
      .of(evaluated);
  f.add("start-eval-at-iter", &start_eval_at_iter,
        "no evaluation before this step; default: from the first --eval-interval on");
  f.add_switch("skip-train", &skip_train, true,
               "do not train: evaluate the model once, on the validation and test sets");
  f.begin_group("batch");
  f.add("iterations-to-skip", &iterations_to_skip,
        "steps to skip, counted from 0: their samples are read but not trained on");
  f.begin_group("evaluation");
  f.add_switch("full-validation", &full_validation, true,
               "each evaluation covers the whole validation split once, instead of --eval-iters");
  f.add_switch("multiple-validation-sets", &multiple_validation_sets, true,
               "evaluate the data sets of --valid-data-path separately, instead of blended (with "
               "a --task that reads examples: their sources); needs --full-validation");
  f.add("validation-set-names", &validation_set_names,
        "names of the validation sets in the log, with --multiple-validation-sets; default their "
        "prefixes, or the names of the sources");
  f.begin_group("data");
  f.add("dataloader-type", &dataloader_type,
        "order of the training samples: single (as indexed, each once) or cyclic (reshuffled "
        "every epoch)");
  f.add_switch("no-data-sharding", &data_sharding, false,
               "with --dataloader-type cyclic: shuffle the samples before dividing them among "
               "the ranks");
  f.begin_group("model");
  f.add("model", &model,
        "Hugging Face directory to take the model's shape from, and with --finetune its weights")
      .in_short_help();
  f.add("model-config", &model_config,
        fmt::format("config.json that gives the shape of a model to be trained from scratch: a "
                    "file, or the name of a published one ({})",
                    fmt::join(model_config_names(), ", ")));
  f.begin_group("logging");
  f.add("sample-interval", &sample_interval,
        "steps between text samples generated for the log; default: none");
  f.add("sample-prompt", &sample_prompt,
        "one or more prompts for the text samples of --sample-interval");
  f.add("sample-tokens", &sample_tokens, "tokens to generate for each sample of --sample-interval")
      .of([this] { return sample_interval ? "" : "--sample-interval is not given"; });
}

std::vector<int64_t> RunSettings::skipped() const {
  std::vector<int64_t> steps;
  for (const std::string& text : iterations_to_skip) {
    const auto step = parse_number<int64_t>(text);
    MG_CHECK(step && *step >= 0, "--iterations-to-skip: '{}' is not a step number (0, 1, ...)",
             text);
    steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

int64_t RunSettings::evaluations_before(int64_t iteration) const {
  const int64_t interval = *eval_interval;
  const int64_t first = std::max<int64_t>(1, ceil_div(start_eval_at_iter.value_or(0), interval));
  return std::max<int64_t>(0, (iteration - 1) / interval - (first - 1));
}

bool RunSettings::evaluates_after(int64_t iteration) const {
  return eval_interval && iteration % *eval_interval == 0 &&
         iteration >= start_eval_at_iter.value_or(0);
}

int64_t RunSettings::eval_batch(const BatchSettings& batch) const {
  return eval_global_batch_size.value_or(*batch.global_batch_size);
}

int64_t RunSettings::eval_micro_batch(const BatchSettings& batch) const {
  return eval_micro_batch_size.value_or(*batch.micro_batch_size);
}

void RunSettings::check(const BatchSettings& batch, int ranks) const {
  const auto positive = [](const std::optional<int64_t>& value, std::string_view flag) {
    MG_CHECK(!value || *value > 0, "--{} is {}; it must be positive", flag, *value);
  };
  positive(eval_interval, "eval-interval");
  positive(sample_interval, "sample-interval");
  positive(eval_global_batch_size, "eval-global-batch-size");
  positive(eval_micro_batch_size, "eval-micro-batch-size");
  MG_CHECK(start_eval_at_iter.value_or(0) >= 0, "--start-eval-at-iter is {}; it cannot be negative",
           *start_eval_at_iter);
  const int64_t together = eval_micro_batch(batch) * ranks;
  MG_CHECK((!eval_global_batch_size && !eval_micro_batch_size) || eval_batch(batch) % together == 0,
           "--eval-global-batch-size is {}, which is not a multiple of micro-batch size {} "
           "(--eval-micro-batch-size) x {} data-parallel ranks",
           eval_batch(batch), eval_micro_batch(batch), ranks);
  const std::vector<int64_t> steps = skipped();
  MG_CHECK(steps.empty() || steps.front() < *batch.train_iters,
           "--iterations-to-skip: step {} of {} does not exist; steps are counted from 0",
           steps.front(), *batch.train_iters);
}

}  // namespace megatron::settings
