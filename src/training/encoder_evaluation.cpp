#include "training/encoder_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <vector>

#include "base/columns.h"
#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "corpus/chat/answer_dataset.h"
#include "corpus/chat/best_answer.h"
#include "corpus/chat/chat_reader.h"
#include "corpus/chat/word_label_dataset.h"
#include "inference/generate.h"
#include "inference/scores.h"

namespace megatron::training {
namespace {

constexpr int64_t kOverlap = 128;  // at most, of two windows of a context
constexpr std::string_view kLimit = "--inference-max-seq-length";

Json number_or_null(double value) { return std::isnan(value) ? Json() : Json(value); }

std::string shown_number(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.4f}", value);
}

double ratio_of(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// A question that is answered: its windows' requests are [first, first + windows).
struct Asked {
  corpus::Question question;
  std::vector<corpus::AnswerWindow> windows;
  size_t first = 0;
};

// The predicted text. may_be_empty: the context need not answer the question.
std::string predicted(const Asked& asked, const std::vector<inference::Generation>& all,
                      bool may_be_empty) {
  corpus::TokenSpan best;
  const corpus::AnswerWindow* in = nullptr;
  double none = std::numeric_limits<double>::infinity();
  for (size_t w = 0; w < asked.windows.size(); ++w) {
    const corpus::AnswerWindow& window = asked.windows[w];
    const std::span<const float> scores = all[asked.first + w].scores;
    none = std::min(none, double{scores[0]} + double{scores[1]});
    const corpus::TokenSpan found =
        corpus::best_answer(scores, window.context, window.context_end());
    if (found.score > best.score) best = found, in = &window;
  }
  if (in == nullptr || (may_be_empty && none > best.score)) return "";
  const auto at = [&](int64_t token) {
    return in->offsets[static_cast<size_t>(token - in->context)];
  };
  const std::string& context = asked.question.context;
  const size_t begin = character_offset(context, at(best.first).begin),
               end = character_offset(context, at(best.last).end);
  return context.substr(begin, std::max(begin, end) - begin);
}

}  // namespace

std::string normalised_answer(std::string_view text) {
  constexpr std::string_view kPunctuation = R"(!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~)";
  std::string plain;
  for (const char c : text) {
    if (kPunctuation.find(c) != kPunctuation.npos) continue;
    const bool space = c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
    plain += space ? ' ' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  std::string kept;
  for (const std::string& word : split_words(plain)) {
    if (word == "a" || word == "an" || word == "the") continue;
    kept += (kept.empty() ? "" : " ") + word;
  }
  return kept;
}

double answer_f1(std::string_view predicted, std::string_view answer) {
  const std::vector<std::string> a = split_words(predicted), b = split_words(answer);
  if (a.empty() || b.empty()) return a.empty() && b.empty() ? 1 : 0;
  std::map<std::string, int64_t> left;
  for (const std::string& word : b) ++left[word];
  int64_t shared = 0;
  for (const std::string& word : a)
    if (auto found = left.find(word); found != left.end() && found->second-- > 0) ++shared;
  return 2.0 * static_cast<double>(shared) / static_cast<double>(a.size() + b.size());
}

Json WordLabelScores::json() const {
  Json::Object all = {{"texts", texts}, {"words", words}, {"accuracy", ratio_of(right, words)}};
  if (!entities) return Json(std::move(all));
  const auto add = [](Json::Object& to, const corpus::EntityCounts::Counts& counts) {
    to.emplace_back("entities", counts.real);
    to.emplace_back("precision", number_or_null(counts.precision()));
    to.emplace_back("recall", number_or_null(counts.recall()));
    to.emplace_back("f1", number_or_null(counts.f1()));
  };
  add(all, entities->all());
  Json::Array types;
  for (const auto& [type, counts] : entities->by_type()) {
    Json::Object one = {{"type", type}};
    add(one, counts);
    types.emplace_back(std::move(one));
  }
  all.emplace_back("types", std::move(types));
  return Json(std::move(all));
}

std::string WordLabelScores::table() const {
  std::string text = fmt::format("accuracy {:.4f} of {} words in {} texts\n",
                                 ratio_of(right, words), words, texts);
  if (!entities) return text;
  std::vector<std::vector<std::string>> rows = {{"type", "entities", "precision", "recall", "f1"}};
  const auto add = [&](const std::string& type, const corpus::EntityCounts::Counts& counts) {
    rows.push_back({without_controls(type), std::to_string(counts.real),
                    shown_number(counts.precision()), shown_number(counts.recall()),
                    shown_number(counts.f1())});
  };
  for (const auto& [type, counts] : entities->by_type()) add(type, counts);
  add("all", entities->all());
  return text + aligned_columns(rows, {false, true, true, true, true});
}

Json AnswerScores::json() const {
  return Json::Object{{"questions", questions},
                      {"unanswered", unanswered},
                      {"exact_match", exact_match},
                      {"f1", f1}};
}

std::string AnswerScores::text() const {
  return fmt::format("exact match {:.4f} | f1 {:.4f} | of {} questions{}\n", exact_match, f1,
                     questions,
                     unanswered > 0 ? fmt::format(", {} without an answer", unanswered) : "");
}

WordLabelScores evaluate_word_labels(const models::Stage& stage, Runtime& runtime,
                                     const ScoreFiles& files,
                                     const inference::EngineOptions& options) {
  const models::ModelFacts& facts = stage.model()->facts();
  const tokenizers::Tokenizer& tokenizer = files.tokenizer.tokenizer();
  const corpus::WordLabelStore store =
      corpus::read_word_labels(files.paths, tokenizer,
                               {.capacity = options.longest_text(stage.model()),
                                .ends = tokenizers::text_ends(tokenizer),
                                .limit = kLimit},
                               facts.label_names, runtime.pool(), "reading texts");
  if (store.without > 0)
    log::warning("{} of {} words are left out: no token begins in them{}", store.without,
                 store.words, store.cut > 0 ? ", or their texts are too long" : "");
  std::vector<inference::Request> requests;
  for (int64_t t = 0; t < store.size(); ++t)
    requests.push_back(
        inference::score_request(facts,
                                 std::span(store.ids).subspan(static_cast<size_t>(store.begin(t)),
                                                              static_cast<size_t>(store.length(t))),
                                 requests.size()));
  const auto all = inference::generate(stage, runtime, requests, options);
  WordLabelScores result{.texts = store.size(), .without = store.without};
  if (corpus::EntityCounts::are_parts(facts.label_names))
    result.entities.emplace(facts.label_names);
  const auto labels = static_cast<size_t>(facts.score_labels);
  for (int64_t t = 0; t < store.size(); ++t) {
    const std::span<const float> scores = all[static_cast<size_t>(t)].scores;
    std::vector<int32_t> real, found;
    for (size_t i = 0; i * labels < scores.size(); ++i) {
      const int32_t label = store.labels[static_cast<size_t>(store.begin(t)) + i];
      if (label == corpus::WordLabelTokens::kNone) continue;
      const std::span<const float> row = scores.subspan(i * labels, labels);
      real.push_back(label);
      found.push_back(static_cast<int32_t>(std::ranges::max_element(row) - row.begin()));
      result.right += found.back() == label ? 1 : 0;
    }
    result.words += std::ssize(real);
    if (result.entities) result.entities->add(real, found);
  }
  return result;
}

AnswerScores evaluate_answers(const models::Stage& stage, Runtime& runtime, const ScoreFiles& files,
                              const inference::EngineOptions& options) {
  const models::ModelFacts& facts = stage.model()->facts();
  const tokenizers::Tokenizer& tokenizer = files.tokenizer.tokenizer();
  const int64_t longest = options.longest_text(stage.model());
  corpus::AnswerReading reading = corpus::answer_reading(facts, tokenizer, longest, 0);
  reading.limit = kLimit;
  std::vector<Asked> asked;
  std::vector<inference::Request> requests;
  AnswerScores result;
  corpus::read_records(files.paths, [&](const Json& record, const std::string& place) {
    Asked& one = asked.emplace_back();
    one.question = corpus::question_of(record, place);
    const int64_t head = std::ssize(tokenizer.encode_pair(one.question.question, "").ids) + 2;
    reading.overlap = std::clamp<int64_t>((longest - head) / 2, 0, kOverlap);
    one.windows = corpus::answer_windows(one.question, tokenizer, reading);
    one.first = requests.size();
    for (const corpus::AnswerWindow& window : one.windows) {
      requests.push_back(inference::score_request(facts, window.ids, requests.size()));
      requests.back().token_types = window.types;
    }
    result.unanswered += one.question.answers.empty() ? 1 : 0;
    return true;
  });
  result.questions = std::ssize(asked);
  MG_CHECK(result.questions > 0, "{} has no questions", files.paths[0]);
  const auto all = inference::generate(stage, runtime, requests, options);
  for (const Asked& one : asked) {
    const std::string text = normalised_answer(predicted(one, all, result.unanswered > 0));
    double exact = 0, f1 = 0;
    std::vector<corpus::GoldAnswer> answers = one.question.answers;
    if (answers.empty()) answers.emplace_back();
    for (const corpus::GoldAnswer& answer : answers) {
      const std::string expected = normalised_answer(answer.text);
      exact = std::max(exact, expected == text ? 1.0 : 0.0);
      f1 = std::max(f1, answer_f1(text, expected));
    }
    result.exact_match += exact;
    result.f1 += f1;
  }
  result.exact_match /= static_cast<double>(result.questions);
  result.f1 /= static_cast<double>(result.questions);
  return result;
}

}  // namespace megatron::training
