// Adapters of an encoder-decoder drop elements of the rows that each of their products reads, in
// backward as in forward: gradients are the slopes of the loss.
#include <gtest/gtest.h>

#include "base/philox.h"
#include "base/tolerances.h"
#include "models/adapters/lora_config.h"
#include "selftest/canonical.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {
namespace {

using Granularity = models::RecomputeOptions::Granularity;

models::Model adapted_t5(bool decomposed) {
  return tiny_t5().model()->with({.adapter = std::make_shared<const models::LoraConfig>(
                                      models::LoraConfig{.rank = 3,
                                                         .alpha = 5,
                                                         .dropout = 0.25,
                                                         .weight_decomposed = decomposed,
                                                         .init = models::LoraInit::random,
                                                         .all_linear = true})});
}

class EncoderDecoderAdapters : public ::testing::TestWithParam<Granularity> {
 protected:
  // The encoder's texts are twice as long as the decoder's.
  std::vector<corpus::HostBatch> batches() const { return {random_batch(model_, 0, 2, 6, true)}; }

  const models::Model model_ = adapted_t5(false);
};

TEST_P(EncoderDecoderAdapters, HaveTheSlopesOfTheLoss) {
  constexpr double kStep = 3e-6;
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  training::TrainedModel trained(model_, DType::f64, 1, {}, *alone, runtime,
                                 {.recompute = {.granularity = GetParam()}});
  randomize(trained.shards(), 2, runtime.stream());
  trained.step.begin({});
  double divisor = 1;
  trained.step.accumulate(batches(), divisor);
  const TensorMap gradients = canonical_gradients(trained.shards(), divisor);
  const auto loss_at = [&](parallel::Shard shard, const std::vector<double>& values) {
    copy_from(shard.value, std::span<const double>(values), runtime.stream());
    return trained.step.accumulate(batches(), divisor).loss;
  };
  int compared = 0;
  for (parallel::Shard shard : trained.shards()) {
    const auto& tensors = shard.placed->placement.tensors;
    if (!shard.placed->parameter.trainable || tensors.size() != 1) continue;
    const std::vector<double>& gradient = gradients.at(tensors[0].name);
    const std::vector<double> start = to_doubles(shard.value);
    const RandomStream drawn(9, tensors[0].name);
    std::vector<double> up = start, down = start;
    double slope = 0;
    for (size_t i = 0; i < start.size(); ++i) {
      const double direction = drawn.normal(i) / std::sqrt(static_cast<double>(start.size()));
      up[i] += kStep * direction;
      down[i] -= kStep * direction;
      slope += gradient[i] * direction;
    }
    const double difference = (loss_at(shard, up) - loss_at(shard, down)) / (2 * kStep);
    copy_from(shard.value, std::span<const double>(start), runtime.stream());
    EXPECT_NEAR(slope, difference, tolerance::kDifferenceModel) << tensors[0].name;
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

INSTANTIATE_TEST_SUITE_P(Passes, EncoderDecoderAdapters,
                         ::testing::Values(Granularity::none, Granularity::full),
                         [](const auto& info) {
                           return info.param == Granularity::none ? "Kept" : "Recomputed";
                         });

TEST(EncoderDecoderAdapters, HaveTheResultsOfOneRankInEveryLayout) {
  for (const bool decomposed : {false, true}) {
    const Environment environment;
    const Experiment experiment(adapted_t5(decomposed), DeviceKind::reference, DType::f64,
                                DType::f64, settings::LossScope::token, 4, 16, environment, nullptr,
                                true);
    const std::vector<optim::Method> sgd = {optim::Method::sgd};
    const Outcome expected = experiment.run({.micro_batch = 4}, sgd);
    for (const Layout& layout : {Layout{.tp = 2, .sequence = true, .micro_batch = 2},
                                 Layout{.cp = 2, .pipeline = {.stages = 2}, .micro_batch = 2}}) {
      Report report(layout.str());
      compare_outcomes(layout.str(), experiment.run(layout, sgd), expected, tolerance::kLayoutFp64,
                       report);
      EXPECT_TRUE(report.passed()) << report.text();
    }
  }
}

}  // namespace
}  // namespace megatron::selftest
