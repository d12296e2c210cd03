// Objectives, whose token weights depend on the whole forward pass, give the results of one rank in
// other layouts (docs/adding.md has the first one).
#include "training/objective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/tolerances.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"
#include "selftest/toy_objective.h"

namespace megatron::training {
namespace {

using selftest::Experiment, selftest::Layout, selftest::Outcome, selftest::SquaredSequenceLoss,
    selftest::TinyModel;

constexpr int64_t kTokens = 16, kPerStep = 8;

// The mean loss of the next tokens, by the slow path.
class MeanLoss final : public Objective {
 public:
  ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                          std::span<double> gradient) const override {
    for (size_t t = 0; t < values.size(); ++t) gradient[t] = batch.loss_mask[t] == 0 ? 0 : -1;
    return {.loss = -std::accumulate(values.begin(), values.end(), 0.0), .metrics = {}};
  }
};

const std::vector<optim::Method> kSgd = {optim::Method::sgd};

Experiment experiment_of(const TinyModel& model, std::shared_ptr<const Objective> objective,
                         const selftest::Environment& environment) {
  return Experiment(model.model(), DeviceKind::reference, DType::f64, DType::f64,
                    settings::LossScope::token, kPerStep, kTokens, environment,
                    std::move(objective));
}

std::vector<Layout> layouts() {
  parallel::PipelineShape two{.stages = 2};
  parallel::PipelineShape zero_bubble{.kind = parallel::ScheduleKind::zero_bubble_h1, .stages = 2};
  return {{.tp = 2, .pipeline = two, .micro_batch = 2},
          {.tp = 2, .sequence = true, .pipeline = zero_bubble, .micro_batch = 2},
          {.tp = 2, .dp = 2, .micro_batch = 2},
          {.dp = 2, .sharding = parallel::Sharding::parameters, .micro_batch = 2},
          {.dp = 2, .pipeline = two, .micro_batch = 2},
          {.cp = 2, .micro_batch = 2},
          {.tp = 2,
           .cp = 2,
           .sequence = true,
           .pipeline = two,
           .exchange = parallel::ContextExchange::all_gather,
           .micro_batch = 2},
          {.tp = 2,
           .recompute = {.granularity = models::RecomputeOptions::Granularity::full},
           .micro_batch = 2}};
}

void expect_equal(const std::string& name, const Outcome& outcome, const Outcome& expected) {
  selftest::Report report(name);
  selftest::compare_outcomes(name, outcome, expected, tolerance::kLayoutFp64, report);
  EXPECT_TRUE(report.passed()) << report.text();
}

TEST(Objectives, GiveTheResultsOfOneRankInEachLayout) {
  const selftest::Environment environment;
  const auto objective = std::make_shared<const SquaredSequenceLoss>();
  for (const TinyModel& model : selftest::tiny_models()) {
    const Experiment experiment = experiment_of(model, objective, environment);
    const Outcome expected = experiment.run({.micro_batch = 2}, kSgd);
    EXPECT_EQ(expected.metrics.at("sequence_loss").size(), static_cast<size_t>(selftest::kSteps));
    for (const Layout& layout : layouts())
      expect_equal(model.name + ", " + layout.str(), experiment.run(layout, kSgd), expected);
  }
}

TEST(Objectives, TheMeanLossIsThatOfTheFastPath) {
  const selftest::Environment environment;
  const auto objective = std::make_shared<const MeanLoss>();
  const TinyModel model = selftest::tiny_models()[0];
  const Outcome expected = experiment_of(model, nullptr, environment).run({.micro_batch = 4}, kSgd);
  for (const Layout& layout : layouts())
    expect_equal(layout.str(), experiment_of(model, objective, environment).run(layout, kSgd),
                 expected);
}

// By differences of the loss with respect to each log-probability.
TEST(Objectives, TheGradientIsThatOfTheLoss) {
  const corpus::HostBatch batch =
      selftest::random_batch(selftest::tiny_models()[0].model(), 0, 3, kTokens);
  std::vector<double> values(static_cast<size_t>(3 * kTokens));
  for (size_t t = 0; t < values.size(); ++t)
    values[t] = batch.loss_mask[t] == 0 ? 0 : -0.1 - 0.3 * static_cast<double>(t % 7);
  const SquaredSequenceLoss objective;
  std::vector<double> gradient(values.size()), unused(values.size());
  objective.evaluate(batch, values, gradient);
  for (size_t t = 0; t < values.size(); ++t) {
    if (batch.loss_mask[t] == 0) continue;
    constexpr double kStep = 1e-5;
    std::vector<double> above = values, below = values;
    above[t] += kStep;
    below[t] -= kStep;
    const double slope = (objective.evaluate(batch, above, unused).loss -
                          objective.evaluate(batch, below, unused).loss) /
                         (2 * kStep);
    EXPECT_NEAR(gradient[t], slope, 1e-9);
  }
}

}  // namespace
}  // namespace megatron::training
