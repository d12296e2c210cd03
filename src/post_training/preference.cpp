#include "post_training/preference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "corpus/chat/preference_role.h"

namespace megatron::post_training {

using corpus::PreferenceRole;

// A document of a batch: indices of the tokens that count.
struct PreferenceObjective::Text {
  PreferenceRole role = PreferenceRole::none;  // of its completion
  std::vector<size_t> completion, prompt;
  size_t full = SIZE_MAX;  // tokens of the completion from here on count ld_alpha

  double weight(size_t token, const settings::PreferenceSettings& s) const {
    return token < full ? 1 : *s.ld_alpha;
  }
  void write(const CompletionSlope& slope, const settings::PreferenceSettings& s, size_t width,
             std::span<double> gradient) const {
    for (size_t i = 0; i < completion.size(); ++i)
      gradient[completion[i] * width] = slope.log_p + weight(i, s) * slope.weighted;
    for (const size_t t : prompt) gradient[t * width] = slope.prompt;
  }
};

PreferenceObjective::PreferenceObjective(settings::PreferenceSettings settings)
    : settings_(std::move(settings)) {
  settings_.check();
}

std::vector<PreferenceObjective::Text> PreferenceObjective::texts_of(
    const corpus::HostBatch& batch) const {
  const size_t tokens = batch.loss_mask.size(), length = static_cast<size_t>(batch.layout.length);
  MG_ASSERT(batch.targets.size() == tokens && batch.segment_starts.size() == tokens);
  std::vector<Text> texts;
  size_t begin = SIZE_MAX;  // of the last text
  for (size_t t = 0; t < tokens; ++t) {
    const auto role = static_cast<PreferenceRole>(static_cast<int>(batch.targets[t]));
    if (batch.loss_mask[t] == 0 || role == PreferenceRole::none) continue;
    const size_t first = t / length * length + static_cast<size_t>(batch.segment_starts[t]);
    if (std::exchange(begin, first) != first) texts.emplace_back();
    Text& text = texts.back();
    if (role == PreferenceRole::chosen_prompt || role == PreferenceRole::rejected_prompt) {
      if (settings_.reads_prompts()) text.prompt.push_back(t);
      text.role =
          role == PreferenceRole::chosen_prompt ? PreferenceRole::chosen : PreferenceRole::rejected;
    } else {
      MG_ASSERT(text.role == PreferenceRole::none || text.role == role);
      text.completion.push_back(t);
      text.role = role;
    }
  }
  return texts;
}

double PreferenceObjective::counted(const corpus::HostBatch& batch) const {
  return static_cast<double>(std::ranges::count_if(texts_of(batch), [this](const Text& text) {
    return text.role == PreferenceRole::chosen ||
           (text.role == PreferenceRole::rejected && settings_.unpaired());
  }));
}

Completion PreferenceObjective::completion_of(const Text& text, const corpus::HostBatch& batch,
                                              std::span<const double> values) const {
  MG_ASSERT(!text.completion.empty());
  const bool squares = settings_.use_weighting, reference = settings_.needs_reference();
  const size_t width = squares ? 2 : 1;
  Completion sums{.length = static_cast<double>(text.completion.size()),
                  .prompt_length = static_cast<double>(text.prompt.size())};
  double confidence = 0;
  for (size_t i = 0; i < text.completion.size(); ++i) {
    const size_t t = text.completion[i];
    const double log_p = values[t * width], weight = text.weight(i, settings_);
    sums.log_p += log_p;
    sums.weighted += weight * log_p;
    if (reference) sums.weighted_reference += weight * batch.reference[t];
    if (squares) confidence += log_p - values[t * width + 1];
  }
  for (const size_t t : text.prompt) sums.prompt_log_p += values[t * width];
  if (squares) sums.confidence = std::exp(confidence / sums.length);
  return sums;
}

double PreferenceObjective::reward(const Completion& completion) const {
  using Row = settings::PreferenceKindRow;
  const std::vector<settings::PreferenceSettings::Term> terms = settings_.terms();
  const bool free = std::ranges::all_of(
      terms, [](const auto& term) { return term.row->family == Row::Family::free; });
  if (!free) return settings_.beta * completion.ratio();
  return settings_.beta * completion.log_p / (terms[0].row->per_token ? completion.length : 1);
}

training::ObjectiveTerms PreferenceObjective::evaluate(const corpus::HostBatch& batch,
                                                       std::span<const double> values,
                                                       std::span<double> gradient) const {
  const size_t tokens = batch.loss_mask.size();
  MG_ASSERT(values.size() == tokens * (settings_.use_weighting ? 2 : 1));
  MG_ASSERT(gradient.size() == values.size());
  MG_ASSERT(!settings_.needs_reference() || batch.reference.size() == tokens);
  return settings_.unpaired() ? completions(batch, values, gradient)
                              : pairs(batch, values, gradient);
}

training::ObjectiveTerms PreferenceObjective::pairs(const corpus::HostBatch& batch,
                                                    std::span<const double> values,
                                                    std::span<double> gradient) const {
  std::vector<Text> texts = texts_of(batch);
  MG_ASSERT(texts.size() % 2 == 0);
  std::vector<CompletionPair> pairs;
  double right = 0, chosen_reward = 0, rejected_reward = 0, chosen = 0, rejected = 0;
  for (size_t i = 0; i < texts.size(); i += 2) {
    MG_ASSERT(texts[i].role == PreferenceRole::chosen &&
              texts[i + 1].role == PreferenceRole::rejected);
    if (settings_.ld_alpha)
      texts[i].full = texts[i + 1].full =
          std::min(texts[i].completion.size(), texts[i + 1].completion.size());
    const CompletionPair& pair = pairs.emplace_back(CompletionPair{
        completion_of(texts[i], batch, values), completion_of(texts[i + 1], batch, values)});
    const double above = reward(pair.chosen), below = reward(pair.rejected);
    right += above > below ? 1 : 0;
    chosen_reward += above;
    rejected_reward += below;
    chosen += pair.chosen.weighted;
    rejected += pair.rejected.weighted;
  }
  std::vector<PairSlope> slopes(pairs.size());
  training::ObjectiveTerms terms{.loss = preference_loss(settings_, pairs, slopes), .metrics = {}};
  const size_t width = settings_.use_weighting ? 2 : 1;
  for (size_t i = 0; i < pairs.size(); ++i) {
    texts[2 * i].write(slopes[i].chosen, settings_, width, gradient);
    texts[2 * i + 1].write(slopes[i].rejected, settings_, width, gradient);
  }
  const auto count = static_cast<double>(pairs.size()), divisor = std::max(count, 1.0);
  terms.metrics = {{"accuracy", right / divisor, count},
                   {"margin", (chosen_reward - rejected_reward) / divisor, count},
                   {"chosen_reward", chosen_reward / divisor, count},
                   {"rejected_reward", rejected_reward / divisor, count},
                   {"chosen_log_probability", chosen / divisor, count},
                   {"rejected_log_probability", rejected / divisor, count}};
  return terms;
}

training::ObjectiveTerms PreferenceObjective::completions(const corpus::HostBatch& batch,
                                                          std::span<const double> values,
                                                          std::span<double> gradient) const {
  struct Means {
    double count = 0, reward = 0, log_p = 0;
  };
  std::vector<Text> texts = texts_of(batch);
  std::vector<LabelledCompletion> completions;
  Means desirable, undesirable, mismatched;
  for (const Text& text : texts) {
    const Completion completion = completion_of(text, batch, values);
    const bool counts = text.role != PreferenceRole::mismatched,
               wanted = text.role == PreferenceRole::chosen;
    if (counts) completions.push_back({completion, wanted});
    Means& means = !counts ? mismatched : wanted ? desirable : undesirable;
    means.count += 1;
    means.reward += counts ? reward(completion) : completion.ratio();
    means.log_p += completion.weighted;
  }
  const double kl = std::max(0.0, mismatched.reward / std::max(mismatched.count, 1.0));
  std::vector<CompletionSlope> slopes(completions.size());
  training::ObjectiveTerms terms{.loss = unpaired_loss(settings_, completions, kl, slopes),
                                 .metrics = {}};
  std::erase_if(texts, [](const Text& text) { return text.role == PreferenceRole::mismatched; });
  for (size_t i = 0; i < texts.size(); ++i) texts[i].write(slopes[i], settings_, 1, gradient);
  const auto add = [&](std::string_view name, double sum, double count) {
    terms.metrics.push_back({name, sum / std::max(count, 1.0), count});
  };
  add("chosen_reward", desirable.reward, desirable.count);
  add("rejected_reward", undesirable.reward, undesirable.count);
  add("chosen_log_probability", desirable.log_p, desirable.count);
  add("rejected_log_probability", undesirable.log_p, undesirable.count);
  if (settings_.reads_mismatched())
    terms.metrics.push_back({"kl", kl, static_cast<double>(completions.size())});
  return terms;
}

std::vector<MetricDefinition> PreferenceObjective::metrics() const {
  std::vector<MetricDefinition> all;
  if (!settings_.unpaired()) all = {{.name = "accuracy"}, {.name = "margin"}};
  for (const char* name :
       {"chosen_reward", "rejected_reward", "chosen_log_probability", "rejected_log_probability"})
    all.push_back({.name = name});
  if (settings_.reads_mismatched()) all.push_back({.name = "kl"});
  return all;
}

}  // namespace megatron::post_training
