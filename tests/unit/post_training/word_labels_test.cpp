// Losses and measures of encoders with scores of tokens: labels of words, answers to questions.
#include "post_training/word_labels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "models/model.h"
#include "post_training/questions.h"
#include "post_training/tasks.h"

namespace megatron::post_training {
namespace {

std::map<std::string, std::pair<double, double>> metrics_of(const training::Objective& objective,
                                                            const corpus::HostBatch& batch,
                                                            const std::vector<double>& scores) {
  std::vector<double> gradient(scores.size());
  const training::ObjectiveTerms terms = objective.evaluate(batch, scores, gradient);
  const std::vector<MetricDefinition> defined = objective.metrics();
  EXPECT_EQ(defined.size(), terms.metrics.size());
  std::map<std::string, std::pair<double, double>> all;
  for (size_t i = 0; i < terms.metrics.size(); ++i) {
    EXPECT_EQ(defined.at(i).name, terms.metrics[i].name);
    all[std::string(terms.metrics[i].name)] = {terms.metrics[i].value, terms.metrics[i].weight};
  }
  return all;
}

// Entities end with their texts, of which the first row has two.
TEST(WordLabels, EntitiesAreCountedByText) {
  const std::vector<std::string> names = {"O", "B-X", "I-X"};
  corpus::HostBatch batch{.layout = {.sequences = 2, .length = 5}};
  batch.tokens.assign(10, 1);
  batch.segment_starts = {0, 0, 0, 3, 3, 0, 0, 0, 0, 0};
  batch.loss_mask = {0, 1, 1, 1, 0, 1, 1, 0, 0, 0};
  batch.labels = {0, 1, 2, 1, 0, 0, 1, 0, 0, 0};
  const std::vector<size_t> predicted = {0, 1, 2, 2, 0, 2, 0, 0, 0, 0};
  std::vector<double> scores(30);
  for (size_t t = 0; t < 10; ++t) scores[3 * t + predicted[t]] = 1;
  const WordLabelObjective objective(names);
  const auto found = metrics_of(objective, batch, scores);
  using Share = std::pair<double, double>;
  EXPECT_EQ(found.at("accuracy"), Share(2.0 / 5, 5));
  // Real: words 1-2, 3, and the second row's second. Predicted: words 1-2, 3, and its first.
  EXPECT_EQ(found.at("precision"), Share(2.0 / 3, 3));
  EXPECT_EQ(found.at("recall"), Share(2.0 / 3, 3));
  EXPECT_EQ(found.at("f1"), Share(2.0 / 3, 6));
  EXPECT_EQ(objective.counted(batch), 5);
  EXPECT_EQ(metrics_of(WordLabelObjective({"NOUN", "VERB", "O"}), batch, scores).size(), 1u);
}

// Two windows in a row, of which the second has no answer, and padding.
corpus::HostBatch windows() {
  corpus::HostBatch batch{.layout = {.sequences = 1, .length = 12}};
  batch.tokens.assign(12, 1);
  batch.segment_starts = {0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 11};
  batch.loss_mask = {1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
  batch.labels = {0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0};
  batch.targets = {2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  return batch;
}

TEST(Questions, TheLossIsOfEachWindowsOwnTokens) {
  const corpus::HostBatch batch = windows();
  std::vector<double> scores, gradient(24);
  for (int i = 0; i < 24; ++i) scores.push_back(0.3 * (i * 7 % 11));
  const QuestionObjective objective;
  const training::ObjectiveTerms terms = objective.evaluate(batch, scores, gradient);
  const auto entropy = [&](size_t begin, size_t length, size_t end, size_t at) {
    double sum = 0;
    for (size_t t = begin; t < begin + length; ++t) sum += std::exp(scores[2 * t + end]);
    return std::log(sum) - scores[2 * (begin + at) + end];
  };
  EXPECT_NEAR(
      terms.loss,
      (entropy(0, 6, 0, 2) + entropy(0, 6, 1, 3) + entropy(6, 5, 0, 0) + entropy(6, 5, 1, 0)) / 2,
      1e-12);
  EXPECT_EQ(objective.counted(batch), 2);
  EXPECT_EQ(gradient[22], 0);
  EXPECT_EQ(gradient[23], 0);
}

TEST(Questions, PredictionsAreComparedByTokens) {
  corpus::HostBatch batch = windows();
  std::vector<double> scores(24);
  scores[2 * 2] = 3, scores[2 * 3 + 1] = 3;  // the first window's answer
  scores[2 * 6] = 1;                         // none in the second one
  scores[2 * 5] = scores[2 * 5 + 1] = 9;     // not of the context
  using Share = std::pair<double, double>;
  auto found = metrics_of(QuestionObjective(), batch, scores);
  EXPECT_EQ(found.at("exact match"), Share(1, 2));
  EXPECT_EQ(found.at("f1"), Share(1, 2));
  scores[2 * 4 + 1] = 4;  // a token too many
  scores[2 * 8] = 2;      // an answer where there is none
  found = metrics_of(QuestionObjective(), batch, scores);
  EXPECT_EQ(found.at("exact match"), Share(0, 2));
  EXPECT_NEAR(found.at("f1").first, 0.8 / 2, 1e-12);
}

TEST(EncoderTasks, TakeEncodersAndTheirOwnHeads) {
  const auto model = [](const std::string& type, const std::string& head) {
    Json config(Json::Object{});
    config.set("model_type", type);
    config.set("architectures", Json::Array{head});
    return models::model_from_config_json(config);
  };
  const auto made = [](const char* name, const std::vector<std::string>& labels) {
    settings::DataSettings settings;
    settings.task = name;
    settings.labels = labels;
    return make_task(settings);
  };
  const auto says = [](const std::function<void()>& f, const std::string& part) {
    try {
      f();
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const auto words = made("token-classification", {"O", "B-X"}),
             answers = made("question-answering", {});
  for (const auto& [type, prefix] : {std::pair{"bert", "Bert"},
                                     {"roberta", "Roberta"},
                                     {"distilbert", "DistilBert"},
                                     {"modernbert", "ModernBert"}}) {
    SCOPED_TRACE(type);
    const models::Model labelled =
        words->model(model(type, prefix + std::string("ForMaskedLM")), {});
    EXPECT_EQ(labelled->facts().scored, models::ScoredTokens::each_token);
    const Json config = labelled->config_json(DType::f32);
    EXPECT_EQ(config["architectures"].as_array()[0].as_string(),
              prefix + std::string("ForTokenClassification"));
    EXPECT_EQ(config["id2label"].dump(), R"({"0": "O", "1": "B-X"})");
    EXPECT_EQ(words->model(labelled, {})->describe().dump(), labelled->describe().dump());
    if (type == std::string("modernbert")) continue;
    const models::Model found =
        answers->model(model(type, prefix + std::string("ForMaskedLM")), {});
    EXPECT_EQ(found->config_json(DType::f32)["architectures"].as_array()[0].as_string(),
              prefix + std::string("ForQuestionAnswering"));
    says([&] { words->model(found, {}); }, "ForTokenClassification");
    says([&] { answers->model(labelled, {}); }, "ForQuestionAnswering");
  }
  says([&] { answers->model(model("modernbert", "ModernBertForMaskedLM"), {}); },
       "ModernBertForQuestionAnswering");
  says([&] { words->model(model("bert", "BertForSequenceClassification"), {}); }, "another one");
  Json gpt2(Json::Object{});
  gpt2.set("model_type", "gpt2");
  says([&] { words->model(models::model_from_config_json(gpt2), {}); }, "trains encoders");
  const models::Model own = words->model(model("bert", "BertForMaskedLM"), {});
  says([&] { made("token-classification", {"O", "B-Y"})->model(own, {}); }, "--labels is O B-Y");
  says([&] { made("token-classification", {})->model(model("bert", "BertForMaskedLM"), {}); },
       "does not know the classes");
}

}  // namespace
}  // namespace megatron::post_training
