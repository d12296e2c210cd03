// Preference tuning: a language model learns from completions of which one was preferred.
#pragma once

#include <memory>

#include "post_training/preference_loss.h"
#include "training/objective.h"

namespace megatron::post_training {

// The losses of preference_loss.h, of the log-probabilities of a batch's labels.
//
// Rows hold documents, apart by their segment_starts. batch.targets[t] is the PreferenceRole of the
// label at t, wherever the mask counts it; batch.reference has the labels' log-probabilities under
// the reference model, if needs_reference(). Each document has one completion, of at least one
// token that counts. Pairs: a chosen and a rejected document in turn. Unpaired: a document per
// example, chosen if it is desirable, and, if reads_mismatched(), for each a document with the
// completion of another example (in any order), from which kto estimates the KL divergence as
// max(0, mean of log p - log p_ref).
//
// Losses that are no sum over pairs or examples (PreferenceSettings::couples) are those of one
// micro-batch: the token means of sft, orpo and cpo, the orders of aot and the KL estimate of kto.
// In an evaluation they are those of one row.
//
// Metrics, means over pairs or completions, with TRL's definitions: the rewards are beta times the
// log-ratio, or without a reference model times the log-probability (its mean over tokens where the
// first kind of loss reads that).
//   chosen_reward, rejected_reward
//   accuracy, margin    of pairs: share whose chosen reward is higher; chosen less rejected reward
//   kl                  of kto: the estimate
//   chosen_log_probability, rejected_log_probability    sums over tokens, with the weights of
//                                                       ld_alpha
class PreferenceObjective final : public training::Objective {
 public:
  // Throws Error for settings that PreferenceSettings::check() refuses.
  explicit PreferenceObjective(settings::PreferenceSettings settings);

  bool reads_squares() const override { return settings_.use_weighting; }
  // Pairs, or unpaired examples.
  double counted(const corpus::HostBatch& batch) const override;
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override;
  const settings::PreferenceSettings& settings() const { return settings_; }

 private:
  struct Text;
  struct Terms;
  std::vector<Text> texts_of(const corpus::HostBatch& batch) const;
  Completion completion_of(const Text& text, const corpus::HostBatch& batch,
                           std::span<const double> values) const;
  double reward(const Completion& completion) const;
  training::ObjectiveTerms pairs(const corpus::HostBatch& batch, std::span<const double> values,
                                 std::span<double> gradient) const;
  training::ObjectiveTerms completions(const corpus::HostBatch& batch,
                                       std::span<const double> values,
                                       std::span<double> gradient) const;

  settings::PreferenceSettings settings_;
};

}  // namespace megatron::post_training
