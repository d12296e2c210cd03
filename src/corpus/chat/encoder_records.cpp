#include "corpus/chat/encoder_records.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::corpus {
namespace {

constexpr int64_t kNoLabel = -100;  // as in transformers

std::string shortened(const Json& value) {
  const std::string text = value.dump();
  return text.size() <= 60 ? text : std::string(whole_characters(text, 57)) + "...";
}

const Json* present(const Json& record, std::string_view key) {
  const Json* value = record.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// The first of these keys that the record has.
template <size_t N>
std::string_view first_key(const Json& record, const std::array<std::string_view, N>& keys) {
  for (const std::string_view key : keys)
    if (present(record, key) != nullptr) return key;
  return {};
}

void require_object(const Json& record, const std::string& place) {
  MG_CHECK(record.is_object(), "{}: a record is a JSON object, but this is {}", place,
           shortened(record));
}

const Json::Array& list_of(const Json& record, std::string_view key, const std::string& place) {
  const Json* value = record.find(key);
  MG_CHECK(value != nullptr && value->is_array(), "{}: '{}' is {}, not a list", place, key,
           value == nullptr ? "absent" : shortened(*value));
  return value->as_array();
}

const std::string& text_of(const Json& record, std::string_view key, const std::string& place) {
  const Json* value = record.find(key);
  MG_CHECK(value != nullptr, "{}: the record has no '{}'", place, key);
  MG_CHECK(value->is_string(), "{}: '{}' is {}, not a text", place, key, shortened(*value));
  check_utf8(value->as_string(), place + ", '" + std::string(key) + "'");
  return value->as_string();
}

Json checked_label(const Json& label, std::string_view key, const std::string& place) {
  if (label.is_null() || (label.is_integer() && label.as_integer() == kNoLabel)) return {};
  MG_CHECK((label.is_integer() && label.as_integer() >= 0) ||
               (label.is_string() && !label.as_string().empty()),
           "{}: '{}' has {}; a label is its name, its index (0, 1, ...), or {} for a word without "
           "one",
           place, key, shortened(label), kNoLabel);
  return label;
}

// {"text": [...], "answer_start": [...]} or [{"text", "answer_start"}, ...].
std::vector<GoldAnswer> answers_of(const Json& answers, const std::string& place) {
  std::vector<GoldAnswer> all;
  const auto add = [&](const Json& text, const Json& begin) {
    MG_CHECK(text.is_string() && begin.is_integer(),
             "{}: an answer has a text and its place in the context (answer_start), but these are "
             "{} and {}",
             place, shortened(text), shortened(begin));
    all.push_back({text.as_string(), begin.as_integer()});
  };
  if (answers.is_array()) {
    for (const Json& one : answers.as_array()) {
      MG_CHECK(one.is_object() && one.contains("text") && one.contains("answer_start"),
               "{}: 'answers' has {}; an answer has 'text' and 'answer_start'", place,
               shortened(one));
      add(one["text"], one["answer_start"]);
    }
    return all;
  }
  MG_CHECK(answers.is_object(),
           "{}: 'answers' is {}; it has the lists 'text' and 'answer_start', or is a list of "
           "objects with these",
           place, shortened(answers));
  const Json::Array &texts = list_of(answers, "text", place),
                    &begins = list_of(answers, "answer_start", place);
  MG_CHECK(texts.size() == begins.size(), "{}: 'answers' has {} texts and {} answer_start", place,
           texts.size(), begins.size());
  for (size_t i = 0; i < texts.size(); ++i) add(texts[i], begins[i]);
  return all;
}

void check_answer(const GoldAnswer& answer, const Question& q) {
  const int64_t context = count_characters(q.context), length = count_characters(answer.text);
  MG_CHECK(length > 0, "{}: an answer is empty; a question without an answer has none in 'answers'",
           q.place);
  MG_CHECK(answer.begin >= 0 && answer.begin + length <= context,
           "{}: the answer '{}' has answer_start {} and {} characters, but the context has {}: it "
           "must lie inside",
           q.place, whole_characters(answer.text, 60), answer.begin, length, context);
  const size_t begin = character_offset(q.context, answer.begin);
  const std::string_view there = std::string_view(q.context).substr(begin);
  MG_CHECK(there.starts_with(answer.text),
           "{}: at character {} (answer_start) of the context stands '{}', not the answer '{}': "
           "answer_start counts characters, not bytes or tokens",
           q.place, answer.begin,
           whole_characters(there, std::clamp<size_t>(answer.text.size(), 20, 60)),
           whole_characters(answer.text, 60));
}

}  // namespace

LabelledWords labelled_words_of(const Json& record, const std::string& place) {
  require_object(record, place);
  const std::string_view words =
                             first_key(record, std::array<std::string_view, 2>{"tokens", "words"}),
                         labels = first_key(
                             record, std::array<std::string_view, 5>{"ner_tags", "labels", "tags",
                                                                     "pos_tags", "chunk_tags"});
  MG_CHECK(!words.empty(), "{}: the record has neither 'tokens' nor 'words', a list of words",
           place);
  MG_CHECK(!labels.empty(),
           "{}: the record has none of 'ner_tags', 'labels', 'tags', 'pos_tags' and 'chunk_tags', "
           "the labels of its words",
           place);
  LabelledWords all;
  for (const Json& word : list_of(record, words, place)) {
    MG_CHECK(word.is_string(), "{}: '{}' has {}, not a word", place, words, shortened(word));
    check_utf8(word.as_string(), place + ", '" + std::string(words) + "'");
    all.words.push_back(word.as_string());
  }
  for (const Json& label : list_of(record, labels, place))
    all.labels.push_back(checked_label(label, labels, place));
  MG_CHECK(all.words.size() == all.labels.size(), "{}: there are {} '{}' and {} '{}'", place,
           all.words.size(), words, all.labels.size(), labels);
  MG_CHECK(!all.words.empty(), "{}: '{}' is empty", place, words);
  return all;
}

Question question_of(const Json& record, std::string place) {
  require_object(record, place);
  Question q{.question = text_of(record, "question", place),
             .context = text_of(record, "context", place),
             .answers = {},
             .place = std::move(place)};
  const Json* answers = present(record, "answers");
  MG_CHECK(answers != nullptr,
           "{}: the record has no 'answers'; of a question that the context does not answer they "
           "are an empty list",
           q.place);
  q.answers = answers_of(*answers, q.place);
  for (const GoldAnswer& answer : q.answers) check_answer(answer, q);
  return q;
}

}  // namespace megatron::corpus
