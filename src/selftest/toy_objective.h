// An objective that only needs whole sequences and the finished forward pass, for checks of layouts
// and as an example.
#pragma once

#include "training/objective.h"

namespace megatron::selftest {

// Half the square of each sequence's mean loss, so that badly predicted sequences count more; the
// mean over sequences.
class SquaredSequenceLoss final : public training::Objective {
 public:
  double counted(const corpus::HostBatch& batch) const override {
    return static_cast<double>(batch.layout.sequences);
  }

  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override {
    training::ObjectiveTerms terms;
    double means = 0;
    const auto length = static_cast<size_t>(batch.layout.length);
    for (size_t begin = 0; begin < values.size(); begin += length) {
      double sum = 0, tokens = 0;
      for (size_t t = begin; t < begin + length; ++t) {
        sum -= values[t];  // 0 where the mask is 0
        tokens += batch.loss_mask[t];
      }
      if (tokens == 0) continue;
      const double mean = sum / tokens;
      terms.loss += mean * mean / 2;
      means += mean;
      for (size_t t = begin; t < begin + length; ++t)
        if (batch.loss_mask[t] != 0) gradient[t] = -mean / tokens;
    }
    const double sequences = counted(batch);
    terms.metrics.push_back({"sequence_loss", means / sequences, sequences});
    return terms;
  }

  std::vector<MetricDefinition> metrics() const override { return {{.name = "sequence_loss"}}; }
};

}  // namespace megatron::selftest
