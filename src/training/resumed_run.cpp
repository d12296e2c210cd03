#include "training/resumed_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/fingerprint.h"
#include "corpus/chat/chat_reader.h"
#include "corpus/sentence_corpus.h"
#include "data/blended_dataset.h"
#include "training/frozen_parameters.h"

namespace megatron::training {
namespace {

// Throws Error if a flag that determines the optimizer's tensors or their format has changed.
void check_rule(const settings::TrainSettings& s, const resume::TrainerState& state,
                const std::string& path) {
  const Json& saved = state.optimizer_settings;
  if (saved.as_object().empty()) return;  // older checkpoints do not store them
  const Json now = resume::optimizer_settings(s.optimizer);
  for (const std::string flag : {"exp-avg-dtype", "exp-avg-sq-dtype", "muon-scalar-optimizer"}) {
    const Json *before = saved.find(flag), *wanted = now.find(flag);
    MG_CHECK(before == nullptr || wanted == nullptr || before->as_string() == wanted->as_string(),
             "{} was trained with --{} {}, but now it is {}; use the same, or --no-load-optim",
             path, flag, before->as_string(), wanted->as_string());
  }
}

// Throws Error unless the state is that of the parameters that this run trains.
void check_frozen(const settings::TrainSettings& s, const resume::TrainerState& state,
                  const std::string& path, const models::Model& model) {
  std::vector<std::string> before;
  if (const Json* saved = state.optimizer_settings.find("freeze"))
    for (const Json& pattern : saved->as_array()) before.push_back(pattern.as_string());
  const std::vector<std::string>& now = s.optimizer.freeze;
  if (before == now) return;
  const auto text = [](const std::vector<std::string>& patterns) {
    return patterns.empty() ? std::string("without --freeze")
                            : fmt::format("with --freeze {}", fmt::join(patterns, " "));
  };
  MG_CHECK(FrozenParameters(model, before) == FrozenParameters(model, now),
           "{} was trained {}, but now the run is {}: its optimizer has the state of other "
           "parameters; freeze the same ones, or use --no-load-optim, which resets the optimizer",
           path, text(before), text(now));
}

// Checks that the optimizer's state has the method, the momentum, the precision and the parameters
// of this run.
void check_optimizer_state(const settings::TrainSettings& s, const resume::StartingPoint& start,
                           const models::Model& model) {
  const resume::TrainerState& state = start.state;
  const std::string& path = start.checkpoint->path();
  MG_CHECK(state.has_optimizer,
           "{} was saved without optimizer state (--no-save-optim); resume with --no-load-optim, "
           "which resets the optimizer",
           path);
  const std::string method(optim::name(s.optimizer.config.method));
  MG_CHECK(state.optimizer == method,
           "{} contains the state of --optimizer {}, but this run uses {}; use the same, or "
           "--no-load-optim",
           path, state.optimizer, method);
  MG_CHECK(state.precision == name(s.precision.type()),
           "{} was trained in {}, but this run is in {}; use the same, or --no-load-optim", path,
           state.precision, name(s.precision.type()));
  const auto tensors = start.checkpoint->optimizer_tensors();
  const bool saved = std::ranges::any_of(
      tensors, [](const auto& tensor) { return tensor.name.starts_with("momentum_buffer."); });
  MG_CHECK(method != "sgd" || saved == (s.optimizer.config.sgd_momentum > 0),
           "{} was trained {} momentum, but --sgd-momentum is {}; use the same, or "
           "--no-load-optim",
           path, saved ? "with" : "without", s.optimizer.config.sgd_momentum);
  check_rule(s, state, path);
  check_frozen(s, state, path, model);
}

Json without_samples(const Json& data) {
  Json::Object rest;
  for (const auto& [flag, value] : data.as_object())
    if (flag != "train-samples") rest.emplace_back(flag, value);
  return rest;
}

std::optional<int64_t> samples_asked(const resume::TrainerState& state) {
  const Json* text = state.data.find("train-samples");
  if (text == nullptr || !text->is_string()) return std::nullopt;
  int64_t samples = 0;
  const std::string& digits = text->as_string();
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), samples);
  return error == std::errc() ? std::optional(samples) : std::nullopt;
}

// True if the samples come in the order of a run that requested `before` samples. If they come in
// random order, epoch after epoch, the order depends on the size of the set: a blend has as many
// samples as are requested, or all that exist.
bool keeps_order(const RunPlan& plan, int64_t before) {
  const data::Dataset& set = plan.corpus.set(data::Split::train);
  if (!corpus::keeps_train_order(plan.settings.data, plan.corpus, before)) return false;
  const auto* const sentences = dynamic_cast<const corpus::SentenceRows*>(&set);
  const bool blend = dynamic_cast<const data::BlendedDataset*>(&set) != nullptr ||
                     (sentences != nullptr && sentences->sized_by_request());
  if (plan.settings.run.dataloader_type == "single" || !blend) return true;
  return set.size() < plan.train_samples && set.size() <= before;
}

// The place among the files of now of one that a run began with, also if it has another name now.
// taken: places of other files.
std::optional<size_t> place_of_example(const Json::Member& before, const Json::Object& now,
                                       const std::vector<size_t>& taken) {
  const std::string name = std::filesystem::path(before.first).filename().string();
  for (const bool renamed : {false, true})
    for (size_t i = 0; i < now.size(); ++i) {
      if (std::ranges::find(taken, i) != taken.end()) continue;
      const Json found =
          renamed ? Json(checkpoint::fingerprint(now[i].first, name)) : now[i].second;
      if (found == before.second) return i;
    }
  return std::nullopt;
}

// What differs between the files that a run began with and those of now, or "".
std::string changed_example(const Json::Object& before, const Json::Object& now) {
  std::vector<size_t> places;
  for (const Json::Member& file : before) {
    const std::optional<size_t> place = place_of_example(file, now, places);
    const auto is_there = [&] {
      return std::ranges::find(now, file.first, &Json::Member::first) != now.end();
    };
    if (!place)
      return fmt::format("{} {} since", file.first,
                         is_there() ? "has changed" : "is not among its files any more");
    places.push_back(*place);
  }
  for (size_t i = 0; i < now.size(); ++i)
    if (std::ranges::find(places, i) == places.end()) return fmt::format("{} is new", now[i].first);
  return std::ranges::is_sorted(places) ? "" : "they come in another order";
}

}  // namespace

void find_examples(RunPlan& plan) {
  const settings::DataSettings& data = plan.settings.data;
  const std::vector<std::string>& paths =
      data.data_path.empty() ? data.train_data_path : data.data_path;
  if (paths.empty()) return;
  Json::Object files;
  for (std::string& file : corpus::example_files(paths)) {
    std::string fingerprint = checkpoint::fingerprint(file);
    files.emplace_back(std::move(file), std::move(fingerprint));
  }
  const Json& before = plan.start.state.examples;
  if (plan.start.checkpoint != nullptr && !before.is_null() && plan.iterations_left() > 0) {
    const std::string changed = changed_example(before.as_object(), files);
    MG_CHECK(
        changed.empty(),
        "the examples differ from those that {0} was trained on: {1}. The order of rows would "
        "change, so that some would be seen twice or never. Restore the files, or train {0} on "
        "the new ones in a separate run (megatron {2} --model {0} --save ANOTHER_DIRECTORY)",
        plan.start.checkpoint->path(), changed, data.task);
  }
  plan.examples = std::move(files);
}

void settle_beginning(RunPlan& plan) {
  settings::TrainSettings& s = plan.settings;
  resume::StartingPoint& start = plan.start;
  if (start.checkpoint == nullptr) return;
  resume::TrainerState& state = start.state;
  resume::settle_schedule(state, start.checkpoint->path(), s.checkpoint, plan.learning_rate,
                          plan.weight_decay, resume::how_to_extend(state, s.batch));
  if (s.checkpoint.load_optimizer) {
    check_optimizer_state(s, start, plan.model);
  } else {
    state.optimizer_steps = 0;
  }
  plan.changes =
      resume::setting_changes(state, s, plan.model, plan.learning_rate, plan.weight_decay);
  if (!s.checkpoint.load_rng && state.seed != s.runtime.seed) {
    plan.changes.push_back(
        {"seed", fmt::format("{}", state.seed), fmt::format("{}", s.runtime.seed)});
    state.seed = s.runtime.seed;
  }
}

void check_data_order(const RunPlan& plan) {
  const settings::TrainSettings& s = plan.settings;
  if (plan.start.checkpoint == nullptr || plan.iterations_left() == 0) return;
  const resume::TrainerState& state = plan.start.state;
  const std::string other = resume::differences(
      without_samples(state.data), without_samples(resume::data_settings(s, plan.train_samples)));
  if (!other.empty()) {
    log::warning(
        "the data differs from the checkpoint's ({}): the following samples are different ones, "
        "and some may be seen twice or never",
        other);
    return;
  }
  const std::optional<int64_t> before = samples_asked(state);
  if (!before || *before == plan.train_samples) return;
  if (keeps_order(plan, *before)) return;
  const std::string longer = resume::how_to_extend(state, s.batch);
  log::warning(
      "the run requests {} training samples, but {} was saved by a run that requested {}: the "
      "epochs are shuffled differently, so the following samples are different ones, and some may "
      "be seen twice or never{}",
      plan.train_samples, plan.start.checkpoint->path(), *before,
      longer.empty() ? "" : ". To train longer in the checkpoint's order, give " + longer);
}

void check_extension(const RunPlan& plan) {
  const settings::BatchSettings& b = plan.settings.batch;
  if (!b.extend_to_iters || plan.settings.run.skip_train || plan.iterations_left() == 0) return;
  if (*b.train_iters == b.base_iters) return;
  const int64_t first = std::max(b.base_samples(), plan.start.state.scheduled_samples) + 1;
  const auto learns = [&](int64_t sample) {
    return plan.learning_rate.at(sample) > 0 ||
           plan.learning_rate.decoupled_at(sample).value_or(0) > 0;
  };
  MG_CHECK(learns(first) || learns(plan.last_sample()),
           "--extend-to-iters {}: the learning rate has decayed to 0 (--min-lr) by step {}, so "
           "nothing would be learned after it; let it decay until the new end{}",
           *b.extend_to_iters, b.base_iters,
           plan.start.checkpoint != nullptr
               ? " with --override-opt-param-scheduler"
               : fmt::format(": --train-iters {} instead", *b.train_iters));
}

}  // namespace megatron::training
