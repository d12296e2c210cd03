// Preferences for checks of layouts.
#pragma once

#include "post_training/preference.h"

namespace megatron::selftest {

// Makes each whole sequence of a batch one or two pairs of documents of the same length, a chosen
// completion before a rejected one, each after a prompt of two tokens or more.
void mark_preferences(corpus::HostBatch& batch);
// Exchanges the chosen and the rejected text of each pair.
void swap_preferences(corpus::HostBatch& batch);

// DPO with WPO's weights of the pairs, that reports what it compares with.
class ComparedPreferences final : public training::Objective {
 public:
  // The mean over pairs of the log-probabilities of their completions under the reference model.
  static constexpr std::string_view kReference = "reference_log_probability";

  bool reads_squares() const override { return dpo_.reads_squares(); }
  double counted(const corpus::HostBatch& batch) const override { return dpo_.counted(batch); }
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override;
  std::vector<MetricDefinition> metrics() const override;

 private:
  const post_training::PreferenceObjective dpo_{{.use_weighting = true}};
};

}  // namespace megatron::selftest
