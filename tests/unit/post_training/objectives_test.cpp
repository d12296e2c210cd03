// Objectives of models that score texts: values by hand, and gradients by differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "post_training/classification.h"
#include "post_training/reward.h"

namespace megatron::post_training {
namespace {

using training::Objective, training::ObjectiveTerms;

// Two sequences of five tokens; of the first, tokens 1 and 3 count, of the second 0, 2, 3 and 4.
corpus::HostBatch batch() {
  corpus::HostBatch batch{.layout = {.sequences = 2, .length = 5}};
  batch.loss_mask = {0, 1, 0, 1, 0, 1, 0, 1, 1, 1};
  batch.labels = {0, 2, 0, 1, 0, 0, 0, 2, 2, 1};
  batch.targets = {0, 0.5, 0, 0, 0, 0, 0, 0, 0.25, 0};
  batch.tokens.resize(10);
  return batch;
}

std::vector<double> scores(size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<double>(i) * 1.7);
  return values;
}

void expect_gradient_of_loss(const Objective& objective, size_t width,
                             const corpus::HostBatch& of = batch()) {
  const std::vector<double> at = scores(10 * width);
  std::vector<double> gradient(at.size()), unused(at.size());
  objective.evaluate(of, at, gradient);
  for (size_t i = 0; i < at.size(); ++i) {
    constexpr double kStep = 1e-5;
    std::vector<double> above = at, below = at;
    above[i] += kStep;
    below[i] -= kStep;
    const double slope =
        (objective.evaluate(of, above, unused).loss - objective.evaluate(of, below, unused).loss) /
        (2 * kStep);
    EXPECT_NEAR(gradient[i], slope, 1e-9) << i;
  }
}

TEST(RewardObjective, IsTheLossOfBradleyAndTerry) {
  const std::vector<double> r = scores(10);
  const auto loss_of = [](double difference) { return std::log1p(std::exp(-difference)); };
  const double expected =
      loss_of(r[1] - r[3] - 0.5) + loss_of(r[5] - r[7]) + loss_of(r[8] - r[9] - 0.25);
  std::vector<double> gradient(10);
  const RewardObjective plain;
  EXPECT_EQ(plain.counted(batch()), 3);
  EXPECT_NEAR(plain.evaluate(batch(), r, gradient).loss, expected, 1e-14);
  const double sums =
      std::pow(r[1] + r[3], 2) + std::pow(r[5] + r[7], 2) + std::pow(r[8] + r[9], 2);
  const ObjectiveTerms terms = RewardObjective(0.02).evaluate(batch(), r, gradient);
  EXPECT_NEAR(terms.loss, expected + 0.02 * sums, 1e-14);
  ASSERT_EQ(terms.metrics.size(), 3u);
  int right = 0;
  for (const auto& [chosen, rejected] : {std::pair{1, 3}, {5, 7}, {8, 9}})
    right += r[static_cast<size_t>(chosen)] > r[static_cast<size_t>(rejected)] ? 1 : 0;
  EXPECT_NEAR(terms.metrics[0].value, right / 3.0, 1e-15);
  EXPECT_EQ(terms.metrics[0].weight, 3);
}

TEST(RewardObjective, TheGradientIsThatOfTheLoss) {
  expect_gradient_of_loss(RewardObjective(), 1);
  expect_gradient_of_loss(RewardObjective(0.3), 1);
}

TEST(RewardObjective, LargeDifferencesStayFinite) {
  corpus::HostBatch of = batch();
  std::vector<double> r(10), gradient(10);
  r[1] = -800;
  r[3] = 800;
  const ObjectiveTerms terms = RewardObjective().evaluate(of, r, gradient);
  EXPECT_NEAR(terms.loss, 1600.5 + std::log(2) + std::log1p(std::exp(0.25)), 1e-9);
  EXPECT_DOUBLE_EQ(gradient[1], -1);
}

TEST(ClassificationObjective, IsTheCrossEntropyOfCountedTexts) {
  const std::vector<double> s = scores(30);
  std::vector<double> gradient(30);
  const ObjectiveTerms terms = ClassificationObjective().evaluate(batch(), s, gradient);
  double expected = 0, right = 0;
  for (size_t t = 0; t < 10; ++t) {
    if (batch().loss_mask[t] == 0) continue;
    const auto label = static_cast<size_t>(batch().labels[t]);
    double sum = 0, highest = -1e9;
    for (size_t c = 0; c < 3; ++c) {
      sum += std::exp(s[3 * t + c]);
      highest = std::max(highest, s[3 * t + c]);
    }
    expected += std::log(sum) - s[3 * t + label];
    right += s[3 * t + label] == highest ? 1 : 0;
  }
  EXPECT_NEAR(terms.loss, expected, 1e-13);
  EXPECT_NEAR(terms.metrics.at(0).value, right / 6, 1e-15);
  EXPECT_EQ(ClassificationObjective().counted(batch()), 6);
}

TEST(ClassificationObjective, TheGradientIsThatOfTheLoss) {
  expect_gradient_of_loss(ClassificationObjective(), 3);
}

// The texts of `rows` with their classes, of which the fourth has none.
corpus::HostBatch batch_of_sets(std::initializer_list<size_t> rows) {
  const corpus::HostBatch all = batch();
  const std::vector<std::vector<int32_t>> sets = {{},  {0, 2}, {}, {1},       {},
                                                  {2}, {},     {}, {0, 1, 2}, {1, 2}};
  corpus::HostBatch some{.layout = {.sequences = std::ssize(rows), .length = 5}};
  for (const size_t row : rows)
    for (size_t t = 5 * row; t < 5 * row + 5; ++t) {
      some.loss_mask.push_back(all.loss_mask[t]);
      some.label_sets.push_back(sets[t]);
    }
  some.tokens.resize(some.loss_mask.size());
  return some;
}

TEST(MultiLabelObjective, IsTheMeanOfBinaryCrossEntropies) {
  const corpus::HostBatch of = batch_of_sets({0, 1});
  const std::vector<double> s = scores(30);
  std::vector<double> gradient(30);
  const ObjectiveTerms terms = MultiLabelObjective().evaluate(of, s, gradient);
  double expected = 0, hits = 0, named = 0, exact = 0;
  for (size_t t = 0; t < 10; ++t) {
    if (of.loss_mask[t] == 0) continue;
    bool same = true;
    for (size_t c = 0; c < 3; ++c) {
      const double p = 1 / (1 + std::exp(-s[3 * t + c]));
      const auto& own = of.label_sets[t];
      const bool real = std::ranges::find(own, static_cast<int32_t>(c)) != own.end();
      expected -= std::log(real ? p : 1 - p) / 3;
      hits += real && p > 0.5 ? 1 : 0;
      named += (real ? 1 : 0) + (p > 0.5 ? 1 : 0);
      same = same && real == (p > 0.5);
    }
    exact += same ? 1 : 0;
  }
  EXPECT_NEAR(terms.loss, expected, 1e-13);
  ASSERT_EQ(terms.metrics.size(), 2u);
  EXPECT_NEAR(terms.metrics[0].value, 2 * hits / named, 1e-15);
  EXPECT_NEAR(terms.metrics[1].value, exact / 6, 1e-15);
  expect_gradient_of_loss(MultiLabelObjective(), 3, of);
}

// The metrics of a step are means over its micro-batches by weight.
TEST(MultiLabelObjective, MetricsDoNotDependOnTheMicroBatches) {
  const std::vector<double> s = scores(30);
  std::vector<double> gradient(30);
  const ObjectiveTerms whole = MultiLabelObjective().evaluate(batch_of_sets({0, 1}), s, gradient);
  std::vector<ObjectiveTerms> parts;
  for (const size_t row : {0, 1})
    parts.push_back(MultiLabelObjective().evaluate(batch_of_sets({row}),
                                                   std::span(s).subspan(15 * row, 15), gradient));
  EXPECT_NEAR(parts[0].loss + parts[1].loss, whole.loss, 1e-13);
  for (size_t m = 0; m < 2; ++m) {
    double sum = 0, weight = 0;
    for (const ObjectiveTerms& part : parts) {
      sum += part.metrics[m].value * part.metrics[m].weight;
      weight += part.metrics[m].weight;
    }
    EXPECT_NEAR(sum / weight, whole.metrics[m].value, 1e-15) << m;
    EXPECT_EQ(weight, whole.metrics[m].weight);
  }
}

}  // namespace
}  // namespace megatron::post_training
