#include "selftest/model_check.h"

#include <algorithm>

#include "base/philox.h"
#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "models/prediction_names.h"
#include "post_training/masked_text.h"
#include "selftest/canonical.h"
#include "training/trained_model.h"

namespace megatron::selftest {
namespace {

constexpr double kStep = 1e-5;

// Results of a batch by the plain implementation.
struct PlainLosses {
  double loss = 0;                          // mean loss of the next tokens
  double objective = 0;                     // with the losses of multi-token prediction
  std::vector<double> of_depths, accepted;  // mean loss of each of its depths, and its hits
};

// A batch whose documents are computed one by one.
class PlainBatch {
 public:
  PlainBatch(const models::Model& model, const corpus::HostBatch& batch)
      : model_(model), batch_(batch), depths_(model->facts().prediction.depths) {}

  PlainLosses run(const TensorMap& weights) const {
    std::vector<Sum> all(static_cast<size_t>(depths_) + 1);
    double objective = 0;
    for (int64_t s = 0; s < batch_.layout.sequences; ++s) {
      std::vector<Sum> of_sequence(all.size());
      for (int64_t begin = s * batch_.layout.length; begin < (s + 1) * batch_.layout.length;) {
        const int64_t end = end_of_document(begin, (s + 1) * batch_.layout.length);
        add_document(weights, begin, end, of_sequence);
        begin = end;
      }
      objective += objective_of(of_sequence);
      for (size_t k = 0; k < all.size(); ++k) all[k].add(of_sequence[k]);
    }
    PlainLosses losses{.loss = all[0].sum / all[0].count, .objective = objective / all[0].count};
    for (size_t k = 1; k < all.size(); ++k) {
      losses.of_depths.push_back(all[k].sum / all[k].count);
      losses.accepted.push_back(all[k].hits / all[k].count);
    }
    return losses;
  }

 private:
  struct Sum {
    double sum = 0, count = 0, hits = 0;
    void add(const Sum& other) {
      sum += other.sum;
      count += other.count;
      hits += other.hits;
    }
  };

  int64_t end_of_document(int64_t begin, int64_t end_of_sequence) const {
    const std::vector<int32_t>& starts = batch_.segment_starts;
    int64_t end = begin + 1;
    while (end < end_of_sequence && (starts.empty() || starts[static_cast<size_t>(end)] ==
                                                           starts[static_cast<size_t>(begin)]))
      ++end;
    return end;
  }
  // sums: of the next tokens, then of each depth.
  void add_document(const TensorMap& weights, int64_t begin, int64_t end,
                    std::vector<Sum>& sums) const {
    const auto part = [&](const std::vector<int32_t>& ids) {
      return std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    };
    const auto tokens = part(batch_.tokens), labels = part(batch_.labels);
    const models::PlainText text{.tokens = tokens,
                                 .encoder = encoder_text(begin),
                                 .types = batch_.token_types.empty() ? std::span<const int32_t>()
                                                                     : part(batch_.token_types)};
    const Sum own = weighted(model_->plain_losses(weights, text, labels), end);
    sums[0].add(own);
    // A pair counts as much as the tokens of its document (post_training/masked_text.h).
    const int32_t pair =
        batch_.pair_labels.empty() ? -1 : batch_.pair_labels[static_cast<size_t>(begin)];
    if (pair >= 0) sums[0].sum += own.count * model_->plain_pair_loss(weights, text, pair);
    if (depths_ == 0) return;
    const auto of_depths = model_->plain_predictions(weights, tokens, labels);
    for (size_t k = 0; k < of_depths.size(); ++k) {
      sums[k + 1].add(weighted(of_depths[k].losses, end));
      sums[k + 1].hits += weighted(of_depths[k].hits, end).sum;
    }
  }
  // What an encoder reads for the document whose first row this is.
  std::span<const int32_t> encoder_text(int64_t begin) const {
    if (batch_.encoder == nullptr) return {};
    const int64_t length = batch_.encoder->layout.length;
    const auto at = static_cast<size_t>(begin),
               row = at / static_cast<size_t>(batch_.layout.length);
    const int64_t first = batch_.encoder_starts.empty() ? 0 : batch_.encoder_starts[at],
                  last = batch_.encoder_ends.empty() ? length - 1 : batch_.encoder_ends[at];
    return std::span(batch_.encoder->tokens)
        .subspan(row * static_cast<size_t>(length) + static_cast<size_t>(first),
                 static_cast<size_t>(last - first + 1));
  }
  // The losses of the labels before row `end`.
  Sum weighted(const std::vector<double>& losses, int64_t end) const {
    Sum sum;
    const auto begin = static_cast<size_t>(end) - losses.size();
    for (size_t t = 0; t < losses.size(); ++t) {
      sum.sum += losses[t] * batch_.loss_mask[begin + t];
      sum.count += batch_.loss_mask[begin + t];
    }
    return sum;
  }
  double objective_of(const std::vector<Sum>& sums) const {
    double objective = sums[0].sum;
    for (size_t k = 1; k < sums.size(); ++k)
      if (sums[k].count > 0)
        objective += model_->facts().prediction.loss_scale / static_cast<double>(depths_) *
                     sums[k].sum * sums[0].count / sums[k].count;
    return objective;
  }

  const models::Model& model_;
  const corpus::HostBatch& batch_;
  int64_t depths_;
};

std::vector<double> unit_direction(const std::string& name, size_t size) {
  const RandomStream stream(9, name);
  std::vector<double> d(size);
  for (size_t i = 0; i < size; ++i) d[i] = stream.normal(i);
  const double length = norm(d);
  for (double& v : d) v /= length;
  return d;
}

}  // namespace

void check_model(const TinyModel& tiny, DeviceKind device, const Environment& environment,
                 Report& report) {
  const models::Model model = tiny.model()->with({.hidden_dropout = 0, .attention_dropout = 0});
  const models::ModelFacts& facts = model->facts();
  const bool wide = device == DeviceKind::reference;
  const DType type = wide ? DType::f64 : DType::f32;
  std::shared_ptr<const training::Objective> objective;
  if (facts.predicts_masked)
    objective = std::make_shared<const post_training::MaskedTextObjective>(facts.pair_head);
  Runtime runtime({device, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  const std::unique_ptr<comm::Group> wrapped = environment.wrap(*alone);
  std::unique_ptr<comm::Group> made;
  comm::Group& group = comm::for_device(wrapped ? *wrapped : *alone, {device, 0}, made);
  training::TrainedModel trained(environment.model(model), type, 1, {}, group, runtime,
                                 {.objective = objective, .table = environment.table(device)});
  randomize(trained.shards(), 2, runtime.stream());
  trained.step.begin({});
  const bool packed = facts.prediction.depths > 0 || facts.two_sided || facts.encoder_layers > 0 ||
                      facts.state_space;
  std::vector<corpus::HostBatch> batches = {random_batch(model, 0, 2, 9, packed)};
  const corpus::HostBatch whole = batches[0];
  if (packed) environment.pairs(0, batches[0]);
  TensorMap weights = canonical_values(trained.shards());
  double divisor = 1;
  const training::StepReport step = trained.step.accumulate(batches, divisor);
  const PlainBatch plain(model, whole);
  const PlainLosses expected = plain.run(weights);
  const double bound = wide ? tolerance::kLayoutFp64 : tolerance::kGoldenLossRelative;
  report.compare("loss", "loss", relative_error(step.loss, expected.loss), bound);
  const auto compare_metric = [&](const std::string& name, double plain_value) {
    const auto found = std::ranges::find(step.metrics, name, &MetricValue::name);
    report.compare("loss", name, relative_error(found->value, plain_value), bound);
  };
  for (size_t k = 0; k < expected.of_depths.size(); ++k) {
    const auto depth = static_cast<int64_t>(k) + 1;
    compare_metric(models::prediction_loss_metric(depth), expected.of_depths[k]);
    compare_metric(models::prediction_acceptance_metric(depth), expected.accepted[k]);
  }

  for (const auto& [name, gradient] : canonical_gradients(trained.shards(), divisor)) {
    std::vector<double>& values = weights.at(name);
    const std::vector<double> start = values, direction = unit_direction(name, values.size());
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = start[i] + distance * direction[i];
      return plain.run(weights).objective;
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    values = start;
    double slope = 0;
    for (size_t i = 0; i < direction.size(); ++i) slope += direction[i] * gradient[i];
    const double limit = wide ? tolerance::kDifferenceModel
                              : tolerance::kGoldenGradientRelative * norm(gradient) +
                                    tolerance::kGoldenGradientAbsolute;
    report.compare("gradients", name, std::abs(slope - difference), limit);
  }
}

}  // namespace megatron::selftest
