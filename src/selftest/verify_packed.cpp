// The losses and gradients of packed rows, computed by objectives of log-probabilities.
#include <fmt/core.h>

#include <cmath>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "corpus/batch.h"
#include "models/stage.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/verify_chats.h"
#include "training/objective.h"
#include "training/trained_model.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

// The mean loss of the tokens with a label; with `dynamic`, each one's is multiplied by its own
// probability, held constant (Wu et al. 2025, DFT). Remembers the values it was given.
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
    const std::lock_guard lock(mutex_);
    values_.assign(values.begin(), values.end());
    return terms;
  }
  const std::vector<double>& values() const { return values_; }

 private:
  bool dynamic_;
  mutable std::mutex mutex_;
  mutable std::vector<double> values_;
};

// All rows end to end: documents that do not see each other.
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

struct ObjectiveRun {
  GatheredTensors gradients;
  double loss = 0;
};

void compare(Expected& expected, const std::string& prefix, ObjectiveRun& results, Report& report) {
  const TensorMap& gradients = results.gradients.tensors();
  for (const std::string& name : expected.names()) {
    if (!name.starts_with(prefix)) continue;
    const std::vector<double> wanted = expected.doubles(name);
    const auto found = gradients.find(name.substr(prefix.size()));
    if (found == gradients.end()) {
      report.fail(fmt::format("the model has no tensor for {}", name));
      continue;
    }
    report.compare(
        "gradients", name, difference_norm(found->second, wanted),
        tolerance::kGoldenGradientRelative * norm(wanted) + tolerance::kGoldenGradientAbsolute);
  }
}

void check_device(const std::string& directory, DeviceKind device, const VerifyOptions& options,
                  Report& report) {
  const std::string start = directory + "/../models/policy";
  const models::Model model =
      models::model_from_directory(start)->with({.hidden_dropout = 0, .attention_dropout = 0});
  const checkpoint::ModelDirectory files(start, options.reading);
  const DType type = device == DeviceKind::reference ? DType::f64 : DType::f32;
  Expected expected(directory + "/packed.safetensors");
  const corpus::HostBatch batch =
      batch_of(expected, options.sequence_parallel ? options.tensor_parallel : 1);
  for (const bool dynamic : {false, true}) {
    const MeanLoss objective(dynamic);
    ObjectiveRun results;
    comm::run_ranks(options.ranks(), [&](comm::Group& world) {
      std::unique_ptr<comm::Group> made;
      comm::Group& group = comm::for_device(world, {device, 0}, made);
      Runtime runtime({device, 0}, options.threads);
      training::TrainedModel trained(model, type, 0, options.layout(), group, runtime,
                                     {.objective = &objective});
      training::load_weights(files, trained.held(), training::whole_model(model, type),
                             {.tells = false});
      trained.step.begin({});
      double divisor = 1;
      const training::StepReport step = trained.step.accumulate({&batch, 1}, divisor);
      results.gradients.add(
          trained.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
      if (world.rank() == 0) results.loss = step.loss;
    });
    const double loss = expected.doubles(dynamic ? "loss_dft" : "loss")[0];
    report.compare("loss", dynamic ? "loss_dft" : "loss", std::abs(results.loss - loss),
                   tolerance::kGoldenLossRelative * std::abs(loss));
    compare(expected, dynamic ? "grad_dft." : "grad.", results, report);
    if (dynamic) continue;
    const std::vector<double> wanted = expected.doubles("log_probs");
    report.compare("log-probabilities", "log_probs",
                   largest_difference(std::span(objective.values()).first(wanted.size()), wanted),
                   tolerance::kGoldenLogitsAbsolute);
  }
}

}  // namespace

std::vector<Report> verify_packed(const std::string& directory, const VerifyOptions& options) {
  MG_CHECK(options.data_parallel == 1 && options.context_parallel == 1,
           "{}/packed.safetensors is one sequence: leave out --data-parallel-size and "
           "--context-parallel-size",
           directory);
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
