#include "training/score_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/columns.h"
#include "base/error.h"
#include "base/log.h"
#include "corpus/chat/scored_dataset.h"
#include "inference/generate.h"
#include "inference/scores.h"

namespace megatron::training {
namespace {

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? std::numeric_limits<double>::quiet_NaN()
                    : static_cast<double>(part) / static_cast<double>(whole);
}

Json or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

std::string shown(double value) { return std::isnan(value) ? "-" : fmt::format("{:.4f}", value); }

// Texts are cut later, to the context length, of which two preferences have as much as one.
corpus::ScoredReading whole_texts(const models::ModelFacts& facts,
                                  const corpus::ChatTokenizer& tokenizer) {
  corpus::ScoredReading reading = corpus::scored_reading(facts, tokenizer.tokenizer());
  reading.capacity = int64_t{1} << 40;
  return reading;
}

// Labelled texts of at most the context length.
corpus::ScoredStore read_labelled(const models::Stage& stage, Runtime& runtime,
                                  const ScoreFiles& files,
                                  const inference::EngineOptions& options) {
  const models::ModelFacts& facts = stage.model()->facts();
  corpus::ScoredReading reading = corpus::scored_reading(facts, files.tokenizer.tokenizer());
  reading.capacity = options.longest_text(stage.model());
  return corpus::read_labelled(files.paths, files.tokenizer, reading, facts.label_names,
                               runtime.pool(), "reading texts");
}

std::vector<std::vector<float>> scores_of(const models::Stage& stage, Runtime& runtime,
                                          const corpus::ScoredStore& store,
                                          const tokenizers::TextEnds& ends,
                                          const inference::EngineOptions& options) {
  const models::Model& model = stage.model();
  MG_ASSERT(inference::scores_texts(model->facts()));
  const int64_t longest = options.longest_text(model);
  std::vector<inference::Request> requests;
  int64_t cut = store.cut;
  for (int64_t t = 0; t < std::ssize(store.ends); ++t) {
    const auto begin = static_cast<size_t>(store.begin(t));
    const auto all =
        std::span(store.ids).subspan(begin, static_cast<size_t>(store.begin(t + 1)) - begin);
    std::vector<int32_t> text(all.begin(), all.end());
    cut += std::ssize(text) > longest ? 1 : 0;
    tokenizers::cut_text(text, longest, true, ends);
    requests.push_back(inference::score_request(model->facts(), text, requests.size()));
    if (store.types.empty()) continue;
    const auto types = std::span(store.types).subspan(begin, text.size());
    requests.back().token_types.assign(types.begin(), types.end());
  }
  if (cut > 0)
    log::warning("{} of {} texts have more than {} tokens and are cut to their beginning", cut,
                 requests.size(), longest);
  std::vector<std::vector<float>> scores;
  for (inference::Generation& g : inference::generate(stage, runtime, requests, options))
    scores.push_back(std::move(g.scores));
  return scores;
}

}  // namespace

int64_t Confusion::of_label(size_t label) const {
  return std::reduce(counts_[label].begin(), counts_[label].end(), int64_t{0});
}

int64_t Confusion::predicted_as(size_t label) const {
  int64_t sum = 0;
  for (const auto& row : counts_) sum += row[label];
  return sum;
}

int64_t Confusion::texts() const {
  int64_t sum = 0;
  for (size_t label = 0; label < names_.size(); ++label) sum += of_label(label);
  return sum;
}

double Confusion::accuracy() const {
  int64_t right = 0;
  for (size_t label = 0; label < names_.size(); ++label) right += counts_[label][label];
  return ratio(right, texts());
}

double Confusion::precision(size_t label) const {
  return ratio(counts_[label][label], predicted_as(label));
}

double Confusion::recall(size_t label) const {
  return ratio(counts_[label][label], of_label(label));
}

Json Confusion::json() const {
  Json::Array classes, confusion;
  for (size_t label = 0; label < names_.size(); ++label) {
    classes.emplace_back(Json::Object{{"label", names_[label]},
                                      {"texts", of_label(label)},
                                      {"precision", or_null(precision(label))},
                                      {"recall", or_null(recall(label))}});
    confusion.emplace_back(Json::Array(counts_[label].begin(), counts_[label].end()));
  }
  return Json::Object{{"texts", texts()},
                      {"accuracy", accuracy()},
                      {"classes", std::move(classes)},
                      {"confusion", std::move(confusion)}};
}

std::string Confusion::table() const {
  std::vector<std::vector<std::string>> rows = {{"label", "texts", "precision", "recall"}};
  for (const std::string& name : names_) rows[0].push_back("as " + without_controls(name));
  std::vector<bool> is_number(rows[0].size(), true);
  is_number[0] = false;
  for (size_t label = 0; label < names_.size(); ++label) {
    rows.push_back({without_controls(names_[label]), std::to_string(of_label(label)),
                    shown(precision(label)), shown(recall(label))});
    for (const int64_t count : counts_[label]) rows.back().push_back(std::to_string(count));
  }
  return fmt::format("accuracy {:.4f} of {} texts\n{}", accuracy(), texts(),
                     aligned_columns(rows, is_number));
}

double MultiLabelCounts::Counts::precision() const { return ratio(hits, predicted); }
double MultiLabelCounts::Counts::recall() const { return ratio(hits, real); }
double MultiLabelCounts::Counts::f1() const { return ratio(2 * hits, real + predicted); }

MultiLabelCounts::Counts& MultiLabelCounts::Counts::operator+=(const Counts& other) {
  real += other.real;
  predicted += other.predicted;
  hits += other.hits;
  return *this;
}

void MultiLabelCounts::add(std::span<const int32_t> classes, std::span<const float> scores) {
  bool same = true;
  for (size_t label = 0; label < names_.size(); ++label) {
    const bool real = std::ranges::binary_search(classes, static_cast<int32_t>(label)),
               predicted = scores[label] > 0;
    counts_[label] += {.real = real, .predicted = predicted, .hits = real && predicted};
    same = same && real == predicted;
  }
  ++texts_;
  exact_ += same ? 1 : 0;
}

MultiLabelCounts::Counts MultiLabelCounts::all() const {
  Counts sum;
  for (const Counts& one : counts_) sum += one;
  return sum;
}

double MultiLabelCounts::exact_match() const { return ratio(exact_, texts_); }

Json MultiLabelCounts::json() const {
  const auto of = [](const Counts& counts) {
    return Json::Object{{"texts", counts.real},
                        {"precision", or_null(counts.precision())},
                        {"recall", or_null(counts.recall())},
                        {"f1", or_null(counts.f1())}};
  };
  Json::Array classes;
  for (size_t label = 0; label < names_.size(); ++label) {
    Json::Object one = of(counts_[label]);
    one.emplace(one.begin(), "label", names_[label]);
    classes.emplace_back(std::move(one));
  }
  Json::Object all = of(this->all());
  all[0].second = texts_;
  all.emplace_back("exact_match", exact_match());
  all.emplace_back("classes", std::move(classes));
  return Json(std::move(all));
}

std::string MultiLabelCounts::table() const {
  std::vector<std::vector<std::string>> rows = {{"label", "texts", "precision", "recall", "f1"}};
  const auto add = [&](const std::string& name, const Counts& counts) {
    rows.push_back({without_controls(name), std::to_string(counts.real), shown(counts.precision()),
                    shown(counts.recall()), shown(counts.f1())});
  };
  for (size_t label = 0; label < names_.size(); ++label) add(names_[label], counts_[label]);
  add("all", all());
  return fmt::format("exact match {:.4f} | f1 {} | of {} texts\n{}", exact_match(),
                     shown(all().f1()), texts_,
                     aligned_columns(rows, {false, true, true, true, true}));
}

Json PairScores::json() const {
  Json::Object all = {
      {"pairs", pairs}, {"accuracy", ratio(right, pairs)}, {"mean_difference", difference}};
  if (margins) all.emplace_back("at_margin", ratio(at_margin, pairs));
  return Json(std::move(all));
}

std::string PairScores::text() const {
  std::string text = fmt::format(
      "the chosen text has the higher score in {:.4f} of {} pairs | mean difference {:.4f}\n",
      ratio(right, pairs), pairs, difference);
  if (margins)
    text += fmt::format("the difference is at least the margin in {:.4f} of the pairs\n",
                        ratio(at_margin, pairs));
  return text;
}

Confusion evaluate_classifier(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                              const inference::EngineOptions& options) {
  const models::ModelFacts& facts = stage.model()->facts();
  const corpus::ScoredStore store = read_labelled(stage, runtime, files, options);
  const auto labels = static_cast<size_t>(facts.score_labels);
  std::vector<std::vector<int64_t>> counts(labels, std::vector<int64_t>(labels));
  const auto scores = scores_of(stage, runtime, store, {}, options);
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto best = std::ranges::max_element(scores[i]) - scores[i].begin();
    ++counts[static_cast<size_t>(store.labels[i])][static_cast<size_t>(best)];
  }
  return {facts.label_names, std::move(counts)};
}

MultiLabelCounts evaluate_multi_label(const models::Stage& stage, Runtime& runtime,
                                      const ScoreFiles& files,
                                      const inference::EngineOptions& options) {
  const models::ModelFacts& facts = stage.model()->facts();
  const corpus::ScoredStore store = read_labelled(stage, runtime, files, options);
  MultiLabelCounts counts(facts.label_names);
  const auto scores = scores_of(stage, runtime, store, {}, options);
  for (size_t i = 0; i < scores.size(); ++i) counts.add(store.label_sets[i], scores[i]);
  return counts;
}

PairScores evaluate_reward(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                           const inference::EngineOptions& options) {
  const corpus::ScoredReading reading = whole_texts(stage.model()->facts(), files.tokenizer);
  const corpus::ScoredStore store =
      corpus::read_pairs(files.paths, files.tokenizer, reading, runtime.pool(), "reading pairs");
  const auto scores = scores_of(stage, runtime, store, reading.ends, options);
  PairScores result{.pairs = store.size()};
  double sum = 0;
  for (size_t i = 0; 2 * i < scores.size(); ++i) {
    const double difference = double{scores[2 * i][0]} - double{scores[2 * i + 1][0]};
    sum += difference;
    result.right += difference > 0 ? 1 : 0;
    result.margins = result.margins || store.margins[i] != 0;
    result.at_margin += difference >= store.margins[i] ? 1 : 0;
  }
  result.difference = sum / static_cast<double>(result.pairs);
  return result;
}

}  // namespace megatron::training
