#include "data/sentence_splitter.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace megatron::data {
namespace {

using Word = std::string_view;

// Without their final point, in lower case; each list is sorted.
constexpr std::array kNeverEnd = {
    Word("adm"),  Word("approx"), Word("attn"), Word("brig"), Word("ca"),     Word("capt"),
    Word("cf"),   Word("cmdr"),   Word("col"),  Word("cpl"),  Word("dr"),     Word("e.g"),
    Word("eg"),   Word("ex"),     Word("fr"),   Word("gen"),  Word("gov"),    Word("hon"),
    Word("i.e"),  Word("ie"),     Word("lt"),   Word("maj"),  Word("messrs"), Word("mlle"),
    Word("mme"),  Word("mr"),     Word("mrs"),  Word("ms"),   Word("mt"),     Word("nr"),
    Word("pres"), Word("prof"),   Word("rep"),  Word("resp"), Word("rev"),    Word("sen"),
    Word("sgt"),  Word("st"),     Word("supt"), Word("viz"),  Word("vs")};
constexpr std::array kNotBeforeNumber = {
    Word("apr"), Word("art"),  Word("aug"), Word("ch"),   Word("chap"), Word("dec"),
    Word("eq"),  Word("feb"),  Word("fig"), Word("figs"), Word("jan"),  Word("jul"),
    Word("jun"), Word("mar"),  Word("no"),  Word("nos"),  Word("nov"),  Word("oct"),
    Word("p"),   Word("par"),  Word("pp"),  Word("pt"),   Word("sec"),  Word("sect"),
    Word("sep"), Word("sept"), Word("ver"), Word("vol"),  Word("vols")};
constexpr std::array kOpeners = {
    Word("a"),     Word("after"), Word("all"),     Word("also"),  Word("an"),    Word("and"),
    Word("as"),    Word("at"),    Word("but"),     Word("for"),   Word("he"),    Word("her"),
    Word("his"),   Word("how"),   Word("however"), Word("i"),     Word("if"),    Word("in"),
    Word("it"),    Word("its"),   Word("many"),    Word("most"),  Word("my"),    Word("no"),
    Word("not"),   Word("on"),    Word("one"),     Word("she"),   Word("since"), Word("so"),
    Word("some"),  Word("that"),  Word("the"),     Word("their"), Word("then"),  Word("there"),
    Word("these"), Word("they"),  Word("this"),    Word("those"), Word("to"),    Word("we"),
    Word("what"),  Word("when"),  Word("where"),   Word("while"), Word("who"),   Word("why"),
    Word("with"),  Word("you")};
static_assert(std::ranges::is_sorted(kNeverEnd) && std::ranges::is_sorted(kNotBeforeNumber) &&
              std::ranges::is_sorted(kOpeners));

template <class List>
bool among(const List& list, std::string_view word) {
  return std::ranges::binary_search(list, word);
}

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
template <size_t N>
size_t mark_at(std::string_view text, size_t at, const std::array<std::string_view, N>& marks) {
  for (const std::string_view mark : marks)
    if (text.substr(at, mark.size()) == mark) return mark.size();
  return 0;
}

using Mark = std::string_view;
constexpr std::array kEnds = {Mark("."), Mark("!"), Mark("?"), Mark("\u2026")};
constexpr std::array kWideEnds = {Mark("\u3002"), Mark("\uff01"), Mark("\uff1f"), Mark("\uff61")};
constexpr std::array kClosing = {Mark("\""),     Mark("'"),      Mark(")"),      Mark("]"),
                                 Mark("}"),      Mark("\u2019"), Mark("\u201d"), Mark("\u00bb"),
                                 Mark("\u203a"), Mark("\u300d"), Mark("\u300f"), Mark("\u3011"),
                                 Mark("\u3009"), Mark("\u300b"), Mark("\uff09")};
constexpr std::array kOpening = {Mark("\""),     Mark("'"),      Mark("("),      Mark("["),
                                 Mark("{"),      Mark("\u2018"), Mark("\u201c"), Mark("\u00ab"),
                                 Mark("\u2039"), Mark("\u2013"), Mark("\u2014"), Mark("-")};

template <size_t N>
size_t skip_marks(std::string_view text, size_t at, const std::array<std::string_view, N>& marks) {
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
