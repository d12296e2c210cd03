// `megatron eval` of a model with a score head: a classifier on texts with one label or several, a
// reward model on pairs of which one text is preferred.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "corpus/chat/chat_tokens.h"
#include "inference/engine_options.h"
#include "models/stage.h"

namespace megatron::training {

// The number of texts of each label (row) for which each label has the largest score (column).
class Confusion {
 public:
  Confusion(std::vector<std::string> names, std::vector<std::vector<int64_t>> counts)
      : names_(std::move(names)), counts_(std::move(counts)) {}

  int64_t texts() const;
  double accuracy() const;
  // NaN for a label that no text is predicted to have, or has.
  double precision(size_t label) const;
  double recall(size_t label) const;
  Json json() const;
  std::string table() const;

 private:
  int64_t of_label(size_t label) const;      // texts that have it
  int64_t predicted_as(size_t label) const;  // texts that are predicted to have it

  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> counts_;
};

// Labels of texts that may have several: for each label the texts that have it, those that are
// predicted to (a score above 0), and those that both are true of.
class MultiLabelCounts {
 public:
  struct Counts {
    int64_t real = 0, predicted = 0, hits = 0;
    // NaN where they are shares of nothing; f1: 2 hits / (real + predicted).
    double precision() const, recall() const, f1() const;
    Counts& operator+=(const Counts& other);
  };
  explicit MultiLabelCounts(std::vector<std::string> names)
      : names_(std::move(names)), counts_(names_.size()) {}
  // classes: those of the text, in ascending order. scores: one for each label.
  void add(std::span<const int32_t> classes, std::span<const float> scores);

  Counts all() const;          // of all labels together (micro-averaged)
  double exact_match() const;  // share of texts whose predicted labels are theirs
  Json json() const;
  std::string table() const;

 private:
  std::vector<std::string> names_;
  std::vector<Counts> counts_;  // by label
  int64_t texts_ = 0, exact_ = 0;
};

struct PairScores {
  int64_t pairs = 0;
  int64_t right = 0;      // in which the chosen text has the higher score
  double difference = 0;  // mean of the chosen text's score minus the rejected one's
  bool margins = false;   // whether a pair has one
  int64_t at_margin = 0;  // pairs whose difference is at least their margin

  Json json() const;
  std::string text() const;
};

struct ScoreFiles {
  const std::vector<std::string>& paths;  // corpus/chat/chat_reader.h
  const corpus::ChatTokenizer& tokenizer;
};

// Scores of files by a whole model. A text beyond the context length is cut to its beginning, and
// their number is logged. Throw Error naming file and line of a bad record.
Confusion evaluate_classifier(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                              const inference::EngineOptions& options);
MultiLabelCounts evaluate_multi_label(const models::Stage& stage, Runtime& runtime,
                                      const ScoreFiles& files,
                                      const inference::EngineOptions& options);
PairScores evaluate_reward(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                           const inference::EngineOptions& options);

}  // namespace megatron::training
