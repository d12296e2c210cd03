#include "selftest/objective_results.h"

#include <fmt/core.h>

#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "models/stage.h"
#include "training/trained_model.h"
#include "training/whole_model.h"

namespace megatron::selftest {
namespace {

// Remembers what an objective read.
class Remembering final : public training::Objective {
 public:
  explicit Remembering(std::shared_ptr<const training::Objective> objective)
      : objective_(std::move(objective)) {}

  bool reads_squares() const override { return objective_->reads_squares(); }
  double counted(const corpus::HostBatch& batch) const override {
    return objective_->counted(batch);
  }
  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override {
    const size_t each = values.size() / batch.sample_ids.size();
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
      const std::span<const double> own = values.subspan(i * each, each);
      values_[batch.sample_ids[i]].assign(own.begin(), own.end());
    }
    return objective_->evaluate(batch, values, gradient);
  }
  std::vector<MetricDefinition> metrics() const override { return objective_->metrics(); }
  std::map<int64_t, std::vector<double>>& values() const { return values_; }

 private:
  std::shared_ptr<const training::Objective> objective_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::vector<double>> values_;
};

// The sequences of a data-parallel rank.
corpus::HostBatch share_of(const corpus::HostBatch& batch, int rank, int ranks) {
  MG_CHECK(batch.layout.sequences % ranks == 0,
           "{} sequences cannot be divided among {} data-parallel ranks", batch.layout.sequences,
           ranks);
  const int64_t count = batch.layout.sequences / ranks;
  corpus::HostBatch share{.layout = {.sequences = count, .length = batch.layout.length}};
  for (int64_t i = rank * count; i < (rank + 1) * count; ++i) {
    const corpus::HostBatch one = corpus::sequence_of(batch, i);
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const auto member : {&corpus::HostBatch::tokens, &corpus::HostBatch::positions,
                              &corpus::HostBatch::labels, &corpus::HostBatch::segment_starts,
                              &corpus::HostBatch::segment_ends, &corpus::HostBatch::sources,
                              &corpus::HostBatch::token_types, &corpus::HostBatch::pair_labels})
      append(share.*member, one.*member);
    append(share.targets, one.targets);
    append(share.reference, one.reference);
    append(share.loss_mask, one.loss_mask);
    append(share.sample_ids, one.sample_ids);
  }
  return share;
}

}  // namespace

ObjectiveResults objective_results(const std::string& directory, const corpus::HostBatch& batch,
                                   const std::shared_ptr<const training::Objective>& objective,
                                   DeviceKind device, const VerifyOptions& options) {
  const models::Model model =
      models::model_from_directory(directory)->with({.hidden_dropout = 0, .attention_dropout = 0});
  const checkpoint::ModelDirectory files(directory, options.reading);
  const DType type = device == DeviceKind::reference ? DType::f64 : DType::f32;
  const auto remembering = std::make_shared<const Remembering>(objective);
  ObjectiveResults results;
  GatheredTensors gradients;
  comm::run_ranks(options.ranks(), [&](comm::Group& world) {
    std::unique_ptr<comm::Group> made;
    comm::Group& group = comm::for_device(world, {device, 0}, made);
    Runtime runtime({device, 0}, options.threads);
    training::TrainedModel trained(model, type, 0, options.layout(), group, runtime,
                                   {.objective = remembering});
    training::load_weights(files, trained.held(), training::whole_model(model, type),
                           {.tells = false});
    trained.step.begin({});
    const comm::Group& samples = trained.ranks.samples();
    corpus::HostBatch own = share_of(batch, samples.rank(), samples.size());
    corpus::keep_tokens(own, trained.ranks.tokens(own.layout.sequences, own.layout.length));
    double divisor = 1;
    const training::StepReport step = trained.step.accumulate({&own, 1}, divisor);
    gradients.add(
        trained.shards(), [](const parallel::Shard& shard) { return shard.gradient; }, divisor);
    if (world.rank() != 0) return;
    results.loss = step.loss;
    for (const MetricValue& metric : step.metrics) results.metrics[metric.name] = metric.value;
  });
  results.values = std::move(remembering->values());
  results.gradients = gradients.tensors();
  return results;
}

void compare_gradients(Expected& expected, const std::string& prefix, const TensorMap& gradients,
                       Report& report, const std::string& table, int64_t unread_row) {
  for (const std::string& name : expected.names()) {
    if (!name.starts_with(prefix)) continue;
    std::vector<double> wanted = expected.doubles(name);
    const auto found = gradients.find(name.substr(prefix.size()));
    if (found == gradients.end()) {
      report.fail(fmt::format("the model has no tensor for {}", name));
      continue;
    }
    std::vector<double> own = found->second;
    if (unread_row >= 0 && found->first == table) {
      const auto width = static_cast<size_t>(expected.shape(name)[1]);
      for (std::vector<double>* rows : {&own, &wanted})
        std::fill_n(rows->begin() + unread_row * static_cast<int64_t>(width), width, 0.0);
    }
    report.compare(
        "gradients", name, difference_norm(own, wanted),
        tolerance::kGoldenGradientRelative * norm(wanted) + tolerance::kGoldenGradientAbsolute);
  }
}

}  // namespace megatron::selftest
