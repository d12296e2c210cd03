// The losses and gradients of packed rows, computed by objectives of log-probabilities.
#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/tolerances.h"
#include "corpus/batch.h"
#include "selftest/objective_results.h"
#include "selftest/verify_chats.h"

namespace megatron::selftest {
namespace {

// The mean loss of the tokens with a label; with `dynamic`, each one's is multiplied by its own
// probability, held constant (Wu et al. 2025, DFT).
class MeanLoss final : public training::Objective {
 public:
  explicit MeanLoss(bool dynamic) : dynamic_(dynamic) {}

  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override {
    training::ObjectiveTerms terms;
    for (size_t t = 0; t < values.size(); ++t) {
      if (batch.loss_mask[t] == 0) continue;
      const double weight = dynamic_ ? std::exp(values[t]) : 1;
      terms.loss -= weight * values[t];
      gradient[t] = -weight;
    }
    return terms;
  }

 private:
  bool dynamic_;
};

// All rows end to end: documents that do not attend to each other.
corpus::HostBatch batch_of(Expected& expected, int64_t multiple) {
  const std::vector<int64_t> ids = expected.integers("input_ids"),
                             labels = expected.integers("labels"),
                             positions = expected.integers("position_ids");
  corpus::HostBatch batch{.layout = {.sequences = 1, .length = std::ssize(ids)}};
  for (size_t t = 0; t < ids.size(); ++t) {
    const bool last = t + 1 == ids.size();
    batch.tokens.push_back(static_cast<int32_t>(ids[t]));
    batch.positions.push_back(static_cast<int32_t>(positions[t]));
    batch.labels.push_back(last ? 0 : static_cast<int32_t>(std::max<int64_t>(labels[t + 1], 0)));
    batch.loss_mask.push_back(last || labels[t + 1] < 0 ? 0.0f : 1.0f);
    batch.segment_starts.push_back(static_cast<int32_t>(static_cast<int64_t>(t) - positions[t]));
  }
  batch.sample_ids = {0};
  corpus::pad_sequences(batch, multiple);
  return batch;
}

void check_device(const std::string& directory, DeviceKind device, const VerifyOptions& options,
                  Report& report) {
  Expected expected(directory + "/packed.safetensors");
  const corpus::HostBatch batch = batch_of(
      expected,
      std::lcm(options.length_multiple(), options.sequence_parallel ? options.tensor_parallel : 1));
  for (const bool dynamic : {false, true}) {
    ObjectiveResults results =
        objective_results(directory + "/../models/policy", batch,
                          std::make_shared<const MeanLoss>(dynamic), device, options);
    const double loss = expected.doubles(dynamic ? "loss_dft" : "loss")[0];
    report.compare("loss", dynamic ? "loss_dft" : "loss", std::abs(results.loss - loss),
                   tolerance::kGoldenLossRelative * std::abs(loss));
    compare_gradients(expected, dynamic ? "grad_dft." : "grad.", results.gradients, report);
    if (dynamic) continue;
    const std::vector<double> wanted = expected.doubles("log_probs");
    report.compare("log-probabilities", "log_probs",
                   largest_difference(std::span(results.values.at(0)).first(wanted.size()), wanted),
                   tolerance::kGoldenLogitsAbsolute);
  }
}

}  // namespace

std::vector<Report> verify_packed(const std::string& directory, const VerifyOptions& options) {
  MG_CHECK(options.data_parallel == 1,
           "{}/packed.safetensors is one sequence: leave out --data-parallel-size", directory);
  std::vector<Report> reports;
  for (const DeviceKind device : options.devices) {
    Report report(fmt::format("{}: packed rows on {} in {}{}", directory, name(device),
                              device == DeviceKind::reference ? "f64" : "f32", options.text()));
    check_device(directory, device, options, report);
    report.note("not compared: entropy, accuracy, loss_wrapped");
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace megatron::selftest
