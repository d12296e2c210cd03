#include "post_training/tasks.h"

#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "corpus/chat/scored_dataset.h"
#include "corpus/masked_corpus.h"
#include "inference/scores.h"
#include "post_training/classification.h"
#include "post_training/masked_text.h"
#include "post_training/preference.h"
#include "post_training/reward.h"

namespace megatron::post_training {
namespace {

using corpus::Corpus, corpus::ExampleFiles, corpus::Vocabulary, models::Model;

class ChatTask final : public training::Task {
 public:
  Model model(const Model& model, const Vocabulary&) const override {
    models::require_language_model(model, "--task sft");
    return model;
  }
  Corpus open(const ExampleFiles& files, const Model&,
              const std::vector<int32_t>& stops) const override {
    return corpus::open_chats(files, stops);
  }
};

class MaskedTextTask final : public training::Task {
 public:
  Model model(const Model& model, const Vocabulary&) const override {
    MG_CHECK(model->facts().predicts_masked,
             "--task mlm trains encoders with a masked language model's head (BERT, ModernBERT, "
             "ESM-2 and the like), and the model is a {} without one",
             model->family());
    return model;
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    return corpus::open_masked(files, model->facts());
  }
  std::shared_ptr<const training::Objective> objective(const Model& model) const override {
    return std::make_shared<const MaskedTextObjective>(model->facts().pair_head);
  }
};

class PreferenceTask final : public training::Task {
 public:
  explicit PreferenceTask(const settings::PreferenceSettings& settings)
      : objective_(std::make_shared<const PreferenceObjective>(settings)) {}

  Model model(const Model& model, const Vocabulary&) const override {
    models::require_language_model(model, "--task dpo");
    return model;
  }
  Corpus open(const ExampleFiles& files, const Model&, const std::vector<int32_t>&) const override {
    const settings::PreferenceSettings& s = objective_->settings();
    return corpus::open_preferences(files, {.prompts = s.reads_prompts(),
                                            .unpaired = s.unpaired(),
                                            .mismatched = s.reads_mismatched()});
  }
  std::shared_ptr<const training::Objective> objective(const Model&) const override {
    return objective_;
  }
  bool needs_reference() const override { return objective_->settings().needs_reference(); }

 private:
  std::shared_ptr<const PreferenceObjective> objective_;
};

// The model with a head of these classes, which begins anew unless the model has one of as many.
Model with_head(const Model& model, const std::vector<std::string>& names,
                const Vocabulary& vocabulary) {
  models::ScoreHead head{.label_names = names, .padding = model->facts().score_padding};
  if (model->score_labels() == 0)
    head.padding = vocabulary.pad.value_or(vocabulary.eod >= 0 ? vocabulary.eod : -1);
  return model->with({.score_head = std::move(head)});
}

// Throws Error for a model whose head has scores of tokens.
void require_scores_of_texts(const Model& model, std::string_view task) {
  MG_CHECK(model->score_labels() == 0 || inference::scores_texts(model->facts()),
           "{} trains scores of texts, and the head of the model ({}) has scores of each token "
           "(ForTokenClassification or ForQuestionAnswering): give a language model, or one with "
           "labels of texts",
           task, model->family());
}

class RewardTask final : public training::Task {
 public:
  explicit RewardTask(double center_coefficient)
      : objective_(std::make_shared<const RewardObjective>(center_coefficient)) {}

  Model model(const Model& model, const Vocabulary& vocabulary) const override {
    require_scores_of_texts(model, "--task reward");
    if (model->score_labels() == 1) return model;
    MG_CHECK(model->score_labels() == 0,
             "--task reward trains one score for each text, but the model has a head of {} "
             "classes: give a language model, or a model with one score",
             model->score_labels());
    return with_head(model, {"LABEL_0"}, vocabulary);
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    return corpus::open_pairs(files, model->facts());
  }
  std::shared_ptr<const training::Objective> objective(const Model&) const override {
    return objective_;
  }

 private:
  std::shared_ptr<const RewardObjective> objective_;
};

class ClassificationTask final : public training::Task {
 public:
  explicit ClassificationTask(const settings::DataSettings& settings) : settings_(settings) {}

  Model model(const Model& model, const Vocabulary& vocabulary) const override {
    require_scores_of_texts(model, "--task classify");
    const std::vector<std::string>& own = model->facts().label_names;
    MG_CHECK(own.size() != 1,
             "--task classify needs a head of at least two classes, but the model gives one score "
             "to each text (--task reward trains it)");
    if (own.empty()) return with_head(model, given_names(), vocabulary);
    MG_CHECK(settings_.labels.empty() || settings_.labels == own,
             "--labels is {}, but the model's head has the classes {}: leave --labels out, or "
             "begin with the language model",
             fmt::join(settings_.labels, " "), fmt::join(own, " "));
    return model;
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    return corpus::open_labelled(files, model->facts());
  }
  std::shared_ptr<const training::Objective> objective(const Model&) const override {
    return objective_;
  }

 private:
  std::vector<std::string> given_names() const {
    if (!settings_.labels.empty()) return settings_.labels;
    const std::vector<std::string> paths = corpus::example_paths(settings_);
    MG_CHECK(!paths.empty(),
             "--task classify does not know the classes: give --labels NAME..., or --data-path");
    return corpus::label_names_in(paths);
  }

  settings::DataSettings settings_;
  std::shared_ptr<const ClassificationObjective> objective_ =
      std::make_shared<const ClassificationObjective>();
};

}  // namespace

std::shared_ptr<const training::Task> make_task(const settings::DataSettings& settings) {
  if (settings.task == "sft") return std::make_shared<const ChatTask>();
  if (settings.masks()) return std::make_shared<const MaskedTextTask>();
  MG_CHECK(
      settings.pretrains() || settings.chat_packing == "bfd" || settings.chat_packing == "none",
      "--chat-packing {} cuts texts apart, but --task {} {}: use bfd or none",
      settings.chat_packing, settings.task,
      settings.task == "dpo" ? "compares completions" : "scores each at its end");
  if (settings.task == "dpo") return std::make_shared<const PreferenceTask>(settings.preferences);
  if (settings.task == "reward") {
    const double center = settings.center_rewards_coefficient;
    MG_CHECK(std::isfinite(center) && center >= 0,
             "--center-rewards-coefficient is {}; it must be a number from 0 on", center);
    return std::make_shared<const RewardTask>(center);
  }
  if (settings.task != "classify") return nullptr;
  const std::set<std::string> different(settings.labels.begin(), settings.labels.end());
  MG_CHECK(settings.labels.empty() ||
               (different.size() == settings.labels.size() && different.size() > 1),
           "--labels is {}; it needs at least two different names",
           fmt::join(settings.labels, " "));
  return std::make_shared<const ClassificationTask>(settings);
}

}  // namespace megatron::post_training
