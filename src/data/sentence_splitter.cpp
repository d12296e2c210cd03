#include "data/sentence_splitter.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"

namespace megatron::data {
namespace {

// Without their final point, in lower case; each list is sorted.
constexpr std::string_view kNeverEnd[] = {
    "adm",    "approx", "attn", "brig", "ca",  "capt", "cf",  "cmdr", "col",  "cpl",  "dr",
    "e.g",    "eg",     "ex",   "fr",   "gen", "gov",  "hon", "i.e",  "ie",   "lt",   "maj",
    "messrs", "mlle",   "mme",  "mr",   "mrs", "ms",   "mt",  "nr",   "pres", "prof", "rep",
    "resp",   "rev",    "sen",  "sgt",  "st",  "supt", "viz", "vs"};
constexpr std::string_view kNotBeforeNumber[] = {
    "apr", "art", "aug", "ch",   "chap", "dec",  "eq",  "feb", "fig", "figs",
    "jan", "jul", "jun", "mar",  "no",   "nos",  "nov", "oct", "p",   "par",
    "pp",  "pt",  "sec", "sect", "sep",  "sept", "ver", "vol", "vols"};
constexpr std::string_view kOpeners[] = {
    "a",    "after", "all",  "also",  "an",      "and",   "as",    "at",   "but",   "for",
    "he",   "her",   "his",  "how",   "however", "i",     "if",    "in",   "it",    "its",
    "many", "most",  "my",   "no",    "not",     "on",    "one",   "she",  "since", "so",
    "some", "that",  "the",  "their", "then",    "there", "these", "they", "this",  "those",
    "to",   "we",    "what", "when",  "where",   "while", "who",   "why",  "with",  "you"};
static_assert(std::ranges::is_sorted(kNeverEnd) && std::ranges::is_sorted(kNotBeforeNumber) &&
              std::ranges::is_sorted(kOpeners));

using Words = std::span<const std::string_view>;

bool among(Words list, std::string_view word) { return std::ranges::binary_search(list, word); }

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// True if the character does not begin a mark that ends a sentence.
bool is_plain(char c) {
  return static_cast<unsigned char>(c) < 0x80 ? c != '.' && c != '!' && c != '?'
                                              : c != '\xe2' && c != '\xe3' && c != '\xef';
}

std::string small_letters(std::string_view word) {
  std::string out(word);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Length in bytes of the mark from the list that `text` has at `at`; 0 without one.
size_t mark_at(std::string_view text, size_t at, Words marks) {
  for (const std::string_view mark : marks)
    if (text.substr(at, mark.size()) == mark) return mark.size();
  return 0;
}

constexpr std::string_view kEnds[] = {".", "!", "?", "\u2026"};
constexpr std::string_view kWideEnds[] = {"\u3002", "\uff01", "\uff1f", "\uff61"};
constexpr std::string_view kClosing[] = {"\"",     "'",      ")",      "]",      "}",
                                         "\u2019", "\u201d", "\u00bb", "\u203a", "\u300d",
                                         "\u300f", "\u3011", "\u3009", "\u300b", "\uff09"};
constexpr std::string_view kOpening[] = {"\"",     "'",      "(",      "[",      "{",      "\u2018",
                                         "\u201c", "\u00ab", "\u2039", "\u2013", "\u2014", "-"};

size_t skip_marks(std::string_view text, size_t at, Words marks) {
  while (const size_t bytes = mark_at(text, at, marks)) at += bytes;
  return at;
}

// True if the word begins with a lower-case Latin, Greek or Cyrillic letter.
bool begins_small(std::string_view word) {
  if (word.empty()) return false;
  const auto first = static_cast<unsigned char>(word[0]);
  if (first < 0x80) return word[0] >= 'a' && word[0] <= 'z';
  if (word.size() < 2 || (first & 0xe0) != 0xc0) return false;
  const uint32_t code = (first & 0x1fu) << 6 | (static_cast<unsigned char>(word[1]) & 0x3fu);
  return (code >= 0xdf && code <= 0xff && code != 0xf7) || (code >= 0x3ac && code <= 0x3ce) ||
         (code >= 0x430 && code <= 0x45f);
}

// True for two line ends with only white space between them.
bool has_blank_line(std::string_view space) {
  const size_t first = space.find('\n');
  return first != space.npos && space.find('\n', first + 1) != space.npos;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

std::string_view word_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]) ||
                               static_cast<unsigned char>(text[end]) >= 0x80))
    ++end;
  return text.substr(at, end - at);
}

// True if the point at `point`, the only one of the sentence from `begin`, ends it; its next word
// begins at `next`, not with a lower-case letter.
bool point_ends(std::string_view text, size_t begin, size_t point, size_t next) {
  size_t from = point;
  while (from > begin && !is_space(text[from - 1])) --from;
  from = skip_marks(text.substr(0, point), from, kOpening);
  const std::string_view word = text.substr(from, point - from);
  const std::string_view follower = word_at(text, next);
  const bool initial = follower.size() == 1 && text.substr(next + 1).starts_with('.');
  const bool opener = !initial && among(kOpeners, small_letters(follower));
  if (word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z') return opener;
  if (!word.empty() && std::ranges::all_of(word, is_digit)) return from != skip_space(text, begin);
  const std::string small = small_letters(word);
  if (among(kNeverEnd, small)) return false;
  if (among(kNotBeforeNumber, small)) return follower.empty() || !is_digit(follower[0]);
  if (word.find('.') != word.npos && word.size() <= 8 && is_letter(word.back())) return opener;
  return true;
}

// End of the sentence from `begin`, where its white space begins; text.size() for the last.
size_t sentence_end(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size();) {
    if (is_space(text[at])) {
      const size_t after = skip_space(text, at);
      if (at > begin && has_blank_line(text.substr(at, after - at))) return at;
      at = after;
      continue;
    }
    if (is_plain(text[at])) {
      ++at;
      continue;
    }
    if (const size_t wide = mark_at(text, at, kWideEnds))
      return skip_marks(text, skip_marks(text, at + wide, kWideEnds), kClosing);
    if (mark_at(text, at, kEnds) == 0) {
      ++at;
      continue;
    }
    const size_t marks_end = skip_marks(text, at, kEnds);
    const size_t end = skip_marks(text, marks_end, kClosing);
    const bool lone_point = marks_end == at + 1 && text[at] == '.';
    const size_t point = at;
    at = end;
    if (end == text.size() || !is_space(text[end])) continue;
    const size_t space_end = skip_space(text, end);
    if (has_blank_line(text.substr(end, space_end - end))) return end;
    const size_t next = skip_marks(text, space_end, kOpening);
    if (begins_small(text.substr(next))) continue;
    if (!lone_point || point_ends(text, begin, point, next)) return end;
  }
  return text.size();
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text.substr(skip_space(text, 0));
}

}  // namespace

SentenceSplitter::SentenceSplitter(std::string_view language, bool keep_newlines)
    : keep_newlines_(keep_newlines) {
  MG_CHECK(language == "english",
           "--lang is '{}'; only english sentences can be split. Split the text beforehand and "
           "give lists of sentences as values, without --split-sentences",
           language);
}

void SentenceSplitter::split(std::string_view text,
                             std::vector<std::string_view>& sentences) const {
  if (skip_space(text, 0) == text.size()) return;
  for (size_t begin = 0; begin < text.size();) {
    const size_t content = skip_space(text, begin);
    const size_t end = skip_space(text, sentence_end(text, content));
    const std::string_view whole = text.substr(begin, end - begin);
    sentences.push_back(keep_newlines_ ? whole : trimmed(whole));
    begin = end;
  }
}

}  // namespace megatron::data
