#include "post_training/tasks.h"

#include <fmt/ranges.h>

#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "corpus/chat/encoder_records.h"
#include "corpus/chat/scored_dataset.h"
#include "corpus/masked_corpus.h"
#include "corpus/span_corpus.h"
#include "data/t5_tokens.h"
#include "inference/scores.h"
#include "post_training/classification.h"
#include "post_training/masked_text.h"
#include "post_training/preference.h"
#include "post_training/questions.h"
#include "post_training/reward.h"
#include "post_training/word_labels.h"

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
             "ESM-2 and the like), and the model is a {} without one{}",
             model->family(),
             model->facts().headless ? ": its class in config.json has no head" : "");
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

// An encoder-decoder, from the token files of sentences or from files of pairs of texts.
class TwoTextsTask final : public training::Task {
 public:
  explicit TwoTextsTask(const settings::DataSettings& settings)
      : name_(settings.task), from_sentences_(settings.corrupts_spans()) {}
  // A model that does not say with which token its texts begin takes the tokenizer's.
  Model model(const Model& model, const Vocabulary& vocabulary) const override {
    MG_CHECK(model->facts().encoder_layers > 0,
             "--task {} trains encoder-decoders (T5, mT5, UMT5), and the model is a {}", name_,
             model->family());
    if (model->facts().start_token >= 0) return model;
    const tokenizers::Tokenizer* tokenizer = vocabulary.tokenizer.get();
    const int64_t start =
        tokenizer == nullptr ? 0 : data::tokenizer_start(data::sample_tokens(*tokenizer));
    return start < 0 ? model : model->with({.start_token = start});
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    ExampleFiles of_model = files;
    of_model.start_token = model->facts().start_token;
    return from_sentences_ ? corpus::open_spans(of_model) : corpus::open_text_pairs(of_model);
  }

 private:
  std::string name_;
  bool from_sentences_;
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

using models::ScoredTokens;

// The model with a head of these classes, which is new unless the model has one with as many.
Model with_head(const Model& model, const std::vector<std::string>& names,
                const Vocabulary& vocabulary, ScoredTokens scored = ScoredTokens::last_token,
                bool multi_label = false) {
  models::ScoreHead head{.label_names = names,
                         .padding = model->facts().score_padding,
                         .scored = scored,
                         .multi_label = multi_label};
  // Files of encoders say their padding, on which RoBERTa's positions depend.
  const bool own = model->facts().two_sided && head.padding >= 0;
  if (model->score_labels() == 0 && !own)
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

// Throws Error unless --labels, if given, are the model's own.
void check_labels(const std::vector<std::string>& given, const std::vector<std::string>& own) {
  MG_CHECK(given.empty() || given == own,
           "--labels is {}, but the model's head has the classes {}: leave --labels out, or begin "
           "with the language model",
           fmt::join(given, " "), fmt::join(own, " "));
}

// The classes of a new head: --labels, or those in the data.
std::vector<std::string> new_labels(
    const settings::DataSettings& settings,
    const std::function<std::vector<std::string>(const std::vector<std::string>& paths)>& in_data) {
  if (!settings.labels.empty()) return settings.labels;
  const std::vector<std::string> paths = corpus::example_paths(settings);
  MG_CHECK(!paths.empty(),
           "--task {} does not know the classes: give --labels NAME..., or --data-path",
           settings.task);
  return in_data(paths);
}

class ClassificationTask final : public training::Task {
 public:
  explicit ClassificationTask(const settings::DataSettings& settings) : settings_(settings) {}

  Model model(const Model& model, const Vocabulary& vocabulary) const override {
    require_scores_of_texts(model, "--task classify");
    const std::vector<std::string>& own = model->facts().label_names;
    MG_CHECK(own.size() != 1,
             "--task classify needs a head of at least two classes, but the model gives one score "
             "to each text (--task reward trains it)");
    if (own.empty()) {
      const std::vector<std::string> paths = corpus::example_paths(settings_);
      return with_head(
          model,
          new_labels(settings_, [](const auto& data) { return corpus::label_names_in(data); }),
          vocabulary, ScoredTokens::last_token, !paths.empty() && corpus::has_label_lists(paths));
    }
    check_labels(settings_.labels, own);
    return model;
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    return corpus::open_labelled(files, model->facts());
  }
  std::shared_ptr<const training::Objective> objective(const Model& model) const override {
    if (model->facts().multi_label) return std::make_shared<const MultiLabelObjective>();
    return std::make_shared<const ClassificationObjective>();
  }

 private:
  settings::DataSettings settings_;
};

// Throws Error unless the model is an encoder that is a masked language model, or has scores of
// these tokens.
void require_encoder(const Model& model, std::string_view task, ScoredTokens scored,
                     std::string_view head) {
  const models::ModelFacts& facts = model->facts();
  MG_CHECK(facts.two_sided,
           "{} trains encoders (BERT, ModernBERT, ESM-2 and the like), and the model is a {}: give "
           "an encoder",
           task, model->family());
  MG_CHECK(facts.score_labels == 0 || facts.scored == scored,
           "{} trains a head {}, and the model ({}) has another one: give a masked language model, "
           "or one with this head",
           task, head, model->family());
}

class WordLabelTask final : public training::Task {
 public:
  explicit WordLabelTask(const settings::DataSettings& settings) : settings_(settings) {}

  Model model(const Model& model, const Vocabulary& vocabulary) const override {
    require_encoder(model, "--task token-classification", ScoredTokens::each_token,
                    "for labels of tokens (ForTokenClassification)");
    if (model->score_labels() > 0) {
      check_labels(settings_.labels, model->facts().label_names);
      return model;
    }
    const auto in_data = [](const std::vector<std::string>& paths) {
      return corpus::label_names_in(paths, [](const Json& record, const std::string& place) {
        return corpus::labelled_words_of(record, place).labels;
      });
    };
    return with_head(model, new_labels(settings_, in_data), vocabulary, ScoredTokens::each_token);
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    return corpus::open_word_labels(files, model->facts());
  }
  std::shared_ptr<const training::Objective> objective(const Model& model) const override {
    return std::make_shared<const WordLabelObjective>(model->facts().label_names);
  }

 private:
  settings::DataSettings settings_;
};

class AnswerTask final : public training::Task {
 public:
  Model model(const Model& model, const Vocabulary& vocabulary) const override {
    require_encoder(model, "--task question-answering", ScoredTokens::span,
                    "for answers (ForQuestionAnswering)");
    if (model->score_labels() > 0) return model;
    return with_head(model, {"start", "end"}, vocabulary, ScoredTokens::span);
  }
  Corpus open(const ExampleFiles& files, const Model& model,
              const std::vector<int32_t>&) const override {
    return corpus::open_answers(files, model->facts());
  }
  std::shared_ptr<const training::Objective> objective(const Model&) const override {
    return std::make_shared<const QuestionObjective>();
  }
};

}  // namespace

std::shared_ptr<const training::Task> make_task(const settings::DataSettings& settings) {
  if (settings.task == "sft") return std::make_shared<const ChatTask>();
  if (settings.masks()) return std::make_shared<const MaskedTextTask>();
  if (settings.corrupts_spans()) return std::make_shared<const TwoTextsTask>(settings);
  MG_CHECK(
      settings.pretrains() || settings.chat_packing == "bfd" || settings.chat_packing == "none",
      "--chat-packing {} divides texts, but --task {} {}: use bfd or none", settings.chat_packing,
      settings.task, settings.task == "dpo" ? "compares completions" : "reads each as a whole");
  if (settings.reads_two_texts()) return std::make_shared<const TwoTextsTask>(settings);
  if (settings.task == "dpo") return std::make_shared<const PreferenceTask>(settings.preferences);
  if (settings.task == "reward") {
    const double center = settings.center_rewards_coefficient;
    MG_CHECK(std::isfinite(center) && center >= 0,
             "--center-rewards-coefficient is {}; it must be a number from 0 on", center);
    return std::make_shared<const RewardTask>(center);
  }
  if (settings.task == "question-answering") return std::make_shared<const AnswerTask>();
  const bool of_words = settings.task == "token-classification";
  if (settings.task != "classify" && !of_words) return nullptr;
  const std::set<std::string> different(settings.labels.begin(), settings.labels.end());
  MG_CHECK(settings.labels.empty() ||
               (different.size() == settings.labels.size() && different.size() > 1),
           "--labels is {}; it needs at least two different names",
           fmt::join(settings.labels, " "));
  if (of_words) return std::make_shared<const WordLabelTask>(settings);
  return std::make_shared<const ClassificationTask>(settings);
}

}  // namespace megatron::post_training
