#include "post_training/masked_text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "models/model.h"
#include "post_training/tasks.h"

namespace megatron::post_training {
namespace {

// Two rows: the first has two documents with two masked tokens and one, the second one with three.
corpus::HostBatch two_rows() {
  corpus::HostBatch batch{.layout = {.sequences = 2, .length = 6}};
  batch.tokens.assign(12, 1);
  batch.loss_mask = {0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0};
  batch.segment_starts = {0, 0, 0, 3, 3, 3, 0, 0, 0, 0, 0, 0};
  batch.pair_labels = {1, -1, -1, 0, -1, -1, 0, -1, -1, -1, -1, -1};
  return batch;
}

// Checks the gradient by differences.
void expect_gradient(const training::Objective& objective, const corpus::HostBatch& batch,
                     std::vector<double> values) {
  std::vector<double> gradient(values.size()), other(values.size());
  objective.evaluate(batch, values, gradient);
  for (size_t i = 0; i < values.size(); ++i) {
    constexpr double kStep = 1e-6;
    const auto loss_at = [&](double value) {
      std::vector<double> moved = values;
      moved[i] = value;
      std::ranges::fill(other, 0.0);
      return objective.evaluate(batch, moved, other).loss;
    };
    const double slope = (loss_at(values[i] + kStep) - loss_at(values[i] - kStep)) / (2 * kStep);
    EXPECT_NEAR(gradient[i], slope, 1e-8) << i;
  }
}

std::vector<double> log_probabilities(size_t count) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) values.push_back(-0.1 - 0.07 * static_cast<double>(i % 11));
  return values;
}

TEST(MaskedText, AddsPairsByTheMaskedTokensOfTheirDocuments) {
  const corpus::HostBatch batch = two_rows();
  const std::vector<double> v = log_probabilities(24);
  std::vector<double> gradient(24);
  const MaskedTextObjective objective(true);
  const training::ObjectiveTerms terms = objective.evaluate(batch, v, gradient);
  const double tokens = -(v[2] + v[4] + v[8] + v[14] + v[18] + v[20]),
               pairs = -(2 * v[1] + 1 * v[7] + 3 * v[13]);
  EXPECT_NEAR(terms.loss, tokens + pairs, 1e-12);
  EXPECT_EQ(objective.counted(batch), 6);
  ASSERT_EQ(terms.metrics.size(), 3u);
  EXPECT_NEAR(terms.metrics[0].value, tokens / 6, 1e-12);
  EXPECT_NEAR(terms.metrics[1].value, -(v[1] + v[7] + v[13]) / 3, 1e-12);
  EXPECT_EQ(terms.metrics[1].weight, 3);
  expect_gradient(objective, batch, v);
}

// The sum of the two means, as transformers has it.
TEST(MaskedText, WeighsPairsEqually) {
  const corpus::HostBatch batch = two_rows();
  const std::vector<double> v = log_probabilities(24);
  std::vector<double> gradient(24);
  const MaskedTextObjective objective(true, 6.0 / 3);  // masked tokens for each pair
  const training::ObjectiveTerms terms = objective.evaluate(batch, v, gradient);
  const double tokens = -(v[2] + v[4] + v[8] + v[14] + v[18] + v[20]) / 6,
               pairs = -(v[1] + v[7] + v[13]) / 3;
  EXPECT_NEAR(terms.loss / 6, tokens + pairs, 1e-12);
  expect_gradient(objective, batch, v);
}

TEST(MaskedText, NeedsNoPairs) {
  corpus::HostBatch batch = two_rows();
  batch.pair_labels.clear();
  expect_gradient(MaskedTextObjective(false), batch, log_probabilities(12));
  EXPECT_EQ(MaskedTextObjective(false).metrics().size(), 1u);
  EXPECT_EQ(MaskedTextObjective(true).metrics().size(), 3u);
}

TEST(Answers, AreLeftOutPastTheRow) {
  corpus::HostBatch batch{.layout = {.sequences = 3, .length = 4}};
  batch.tokens.assign(12, 1);
  batch.loss_mask = {1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};  // the last row does not count
  batch.targets = {1, 3, 0, 0, 2, 4, 0, 0, 0, 0, 0, 0};    // the second row's end is past it
  const std::vector<double> scores = log_probabilities(24);
  std::vector<double> gradient(24);
  const AnswerObjective objective;
  const double loss = objective.evaluate(batch, scores, gradient).loss / objective.counted(batch);
  const auto entropy = [&](size_t row, size_t end, size_t at) {
    double sum = 0;
    for (size_t t = 0; t < 4; ++t) sum += std::exp(scores[(row * 4 + t) * 2 + end]);
    return std::log(sum) - scores[(row * 4 + at) * 2 + end];
  };
  const double starts = (entropy(0, 0, 1) + entropy(1, 0, 2)) / 2, ends = entropy(0, 1, 3);
  EXPECT_NEAR(loss, (starts + ends) / 2, 1e-12);
  for (size_t i = 16; i < 24; ++i) EXPECT_EQ(gradient[i], 0);
  expect_gradient(objective, batch, scores);
}

// Labels of tokens and answers have no text to score.
TEST(ClassificationTask, RefusesHeadsOfTokens) {
  settings::DataSettings settings;
  settings.task = "classify";
  settings.labels = {"a", "b"};
  const auto task = make_task(settings);
  for (const char* head : {"TokenClassification", "QuestionAnswering"}) {
    Json config(Json::Object{});
    config.set("model_type", "bert");
    config.set("architectures", Json::Array{"BertFor" + std::string(head)});
    const models::Model model = models::model_from_config_json(config);
    try {
      task->model(model, {});
      ADD_FAILURE() << head;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("scores of each token"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace megatron::post_training
