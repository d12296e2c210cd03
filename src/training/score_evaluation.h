// `megatron eval` of a model with a score head: a classifier on texts with labels, a reward model
// on pairs of which one text is preferred.
#pragma once

#include <cstdint>
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
PairScores evaluate_reward(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                           const inference::EngineOptions& options);

}  // namespace megatron::training
