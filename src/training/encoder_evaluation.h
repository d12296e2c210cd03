// `megatron eval` of encoders with scores of tokens: labels of words, and answers to questions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "corpus/chat/entities.h"
#include "training/score_evaluation.h"

namespace megatron::training {

struct WordLabelScores {
  int64_t texts = 0;
  int64_t words = 0;    // with a label and a token
  int64_t right = 0;    // whose label has the largest score
  int64_t without = 0;  // left out: no token begins in them, or they are cut off
  // If the labels are parts of entities.
  std::optional<corpus::EntityCounts> entities = {};

  Json json() const;
  std::string table() const;
};

// As SQuAD's evaluation defines them: an answer and a prediction are compared without case (of
// ASCII letters), punctuation, articles (a, an, the) and repeated spaces; f1 is that of their
// words; of several answers the best counts. A question without an answer has the answer "".
struct AnswerScores {
  int64_t questions = 0, unanswered = 0;
  double exact_match = 0, f1 = 0;  // means over questions, in [0, 1]

  Json json() const;
  std::string text() const;
};

// A text with all that SQuAD's comparison leaves out removed: "the Cat's  hat." is "cats hat".
std::string normalised_answer(std::string_view text);
// Shared words of two normalised texts: f1 of a prediction, 1 if both are empty.
double answer_f1(std::string_view predicted, std::string_view answer);

// Scores of files by a whole model. Of a text beyond the context length the beginning is read; a
// context in several windows, which share half of their room for it, but at most 128 tokens. Throw
// Error naming file and line of a bad record.
WordLabelScores evaluate_word_labels(const models::Stage& stage, Runtime& runtime,
                                     const ScoreFiles& files,
                                     const inference::EngineOptions& options);
AnswerScores evaluate_answers(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                              const inference::EngineOptions& options);

}  // namespace megatron::training
