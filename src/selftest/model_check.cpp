#include "selftest/model_check.h"

#include "base/philox.h"
#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "training/trained_model.h"

namespace megatron::selftest {
namespace {

constexpr double kStep = 1e-5;

double mean_loss(const models::Model& model, const TensorMap& weights,
                 const corpus::HostBatch& batch) {
  double sum = 0;
  for (int64_t s = 0; s < batch.layout.sequences; ++s) {
    const auto begin = static_cast<size_t>(s * batch.layout.length);
    const auto of_sequence = [&](const std::vector<int32_t>& ids) {
      return std::span(ids).subspan(begin, static_cast<size_t>(batch.layout.length));
    };
    const std::vector<double> losses =
        model->plain_losses(weights, of_sequence(batch.tokens), of_sequence(batch.labels));
    for (size_t t = 0; t < losses.size(); ++t) sum += losses[t] * batch.loss_mask[begin + t];
  }
  return sum / batch.counted();
}

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
  const bool wide = device == DeviceKind::reference;
  const DType type = wide ? DType::f64 : DType::f32;
  Runtime runtime({device, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  const std::unique_ptr<comm::Group> wrapped = environment.wrap(*alone);
  std::unique_ptr<comm::Group> made;
  comm::Group& group = comm::for_device(wrapped ? *wrapped : *alone, {device, 0}, made);
  training::TrainedModel trained(model, type, 1, {}, group, runtime,
                                 {.table = environment.table(device)});
  randomize(trained.shards(), 2, runtime.stream());
  trained.step.begin({});
  const std::vector<corpus::HostBatch> batches = {random_batch(model, 0, 2, 9)};
  TensorMap weights = canonical_values(trained.shards());
  double divisor = 1;
  const double loss = trained.step.accumulate(batches, divisor).loss;
  report.compare("loss", "loss", relative_error(loss, mean_loss(model, weights, batches[0])),
                 wide ? tolerance::kLayoutFp64 : tolerance::kGoldenLossRelative);

  for (const auto& [name, gradient] : canonical_gradients(trained.shards(), divisor)) {
    std::vector<double>& values = weights.at(name);
    const std::vector<double> start = values, direction = unit_direction(name, values.size());
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = start[i] + distance * direction[i];
      return mean_loss(model, weights, batches[0]);
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    values = start;
    double slope = 0;
    for (size_t i = 0; i < direction.size(); ++i) slope += direction[i] * gradient[i];
    const double bound = wide ? tolerance::kDifferenceModel
                              : tolerance::kGoldenGradientRelative * norm(gradient) +
                                    tolerance::kGoldenGradientAbsolute;
    report.compare("gradients", name, std::abs(slope - difference), bound);
  }
}

}  // namespace megatron::selftest
