// Reads records of encoders' tasks from JSON: words with labels, and questions with answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace megatron::corpus {

// Words that have a label each: its name (string), its index (integer), or null for a word without
// one.
struct LabelledWords {
  std::vector<std::string> words;
  std::vector<Json> labels;  // [words]
};
// {"tokens": [WORD, ...], "ner_tags": [LABEL, ...]}, as CoNLL's data sets have them on the Hugging
// Face hub; or `words`, and `labels`, `tags`, `pos_tags` or `chunk_tags`, of which the first in
// this order counts. The label -100 or null is that of a word without one. Throws Error naming the
// place: no words, another number of labels, a label that is neither a name nor an index.
LabelledWords labelled_words_of(const Json& record, const std::string& place);

// Part of a context: its characters (code points) [begin, begin + the text's length).
struct GoldAnswer {
  std::string text;
  int64_t begin = 0;
};
struct Question {
  std::string question, context;
  std::vector<GoldAnswer> answers;  // none: the context does not answer it
  std::string place;
};
// {"question", "context", "answers": {"text": [TEXT, ...], "answer_start": [INDEX, ...]}}, as SQuAD
// has them on the Hugging Face hub; or `answers` is a list of {"text", "answer_start"}. Throws
// Error naming the place: an answer that does not stand at its place in the context, no context.
Question question_of(const Json& record, std::string place);

}  // namespace megatron::corpus
