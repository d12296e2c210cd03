// The filter wordwrap: Python's textwrap.wrap. Lines are broken at spaces and after hyphens within
// words; words longer than a line are split.
#include <algorithm>

#include "base/error.h"
#include "jinja/builtins.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

using Letters = std::vector<char32_t>;

bool is_blank(char32_t c) { return c == ' ' || (c >= 0x09 && c <= 0x0D); }

// A letter of a word: \w without digits.
bool is_name_letter(char32_t c) { return is_word(c) && !is_decimal(c); }

bool is_word_or_mark(char32_t c) {
  return is_word(c) || (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) !=
                                        std::string_view::npos);
}

class Chunker {
 public:
  Chunker(const Letters& letters, bool at_hyphens) : letters_(letters), at_hyphens_(at_hyphens) {}

  // Returns the end of the chunk that begins at `begin`: a run of blanks, a dash between words, or
  // a word up to the place where it may be cut.
  size_t end_of_chunk(size_t begin) const {
    size_t end = begin;
    while (end < letters_.size() && is_blank(letters_[end])) ++end;
    if (end > begin) return end;
    if (!at_hyphens_) {
      while (end < letters_.size() && !is_blank(letters_[end])) ++end;
      return end;
    }
    while (at(end) == '-') ++end;
    if (end - begin >= 2 && begin > 0 && is_word_or_mark(letters_[begin - 1]) && is_word(at(end)))
      return end;
    for (end = begin + 1; end < letters_.size() && !is_blank(letters_[end]); ++end)
      if (hyphen_before(end, begin) || dash_follows(end)) return end;
    return end;
  }

 private:
  char32_t at(size_t i) const { return i < letters_.size() ? letters_[i] : U'\0'; }

  // True if a word may be cut at `end`, after a hyphen: two letters (or a letter, a hyphen and a
  // letter or mark) come before it, and two letters after it.
  bool hyphen_before(size_t end, size_t begin) const {
    if (letters_[end - 1] != '-' || end < begin + 2) return false;
    const auto letter = [&](size_t i) { return is_name_letter(at(i)); };
    if (!letter(end) || !(letter(end + 1) || (at(end + 1) == '-' && letter(end + 2)))) return false;
    if (end >= 3 && letter(end - 2) && letter(end - 3)) return true;
    return end >= 4 && is_word_or_mark(at(end - 2)) && at(end - 3) == '-' && letter(end - 4);
  }

  // True if a dash of two hyphens or more begins at `end`, with words on both sides.
  bool dash_follows(size_t end) const {
    if (!is_word_or_mark(letters_[end - 1]) || at(end) != '-' || at(end + 1) != '-') return false;
    size_t behind = end;
    while (at(behind) == '-') ++behind;
    return is_word(at(behind));
  }

  const Letters& letters_;
  bool at_hyphens_;
};

struct Wrapping {
  size_t width;
  bool cut_long_words, at_hyphens;
};

bool all_blank(const Letters& letters) {
  return std::all_of(letters.begin(), letters.end(), is_space);
}

std::string encoded(const std::vector<Letters>& chunks) {
  std::string text;
  for (const Letters& chunk : chunks)
    for (const char32_t c : chunk) append_character(c, text);
  return text;
}

// Cuts what fits into `space` letters from a word that is longer than a line.
Letters cut_long(Letters& word, size_t space, bool at_hyphens) {
  size_t end = space;
  if (at_hyphens && word.size() > space) {
    const auto first = word.begin(), last = word.begin() + static_cast<std::ptrdiff_t>(space);
    const auto hyphen =
        std::find(std::make_reverse_iterator(last), std::make_reverse_iterator(first), U'-');
    const auto at = static_cast<size_t>(hyphen.base() - first);  // one past the hyphen
    const bool word_before =
        at > 1 && std::any_of(first, first + static_cast<std::ptrdiff_t>(at) - 1,
                              [](char32_t c) { return c != '-'; });
    if (word_before) end = at;
  }
  const auto cut = word.begin() + static_cast<std::ptrdiff_t>(end);
  Letters head(word.begin(), cut);
  word.erase(word.begin(), cut);
  return head;
}

std::vector<std::string> wrap_line(std::string_view line, const Wrapping& w, Budget& budget) {
  budget.spend_bytes(line.size() * 16);
  const Letters letters = code_points(line);
  const Chunker chunker(letters, w.at_hyphens);
  std::vector<Letters> chunks;
  for (size_t begin = 0; begin < letters.size();) {
    const size_t end = chunker.end_of_chunk(begin);
    chunks.emplace_back(letters.begin() + static_cast<std::ptrdiff_t>(begin),
                        letters.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
  }
  std::vector<std::string> lines;
  for (size_t next = 0; next < chunks.size();) {
    std::vector<Letters> current;
    size_t length = 0;
    if (!lines.empty() && all_blank(chunks[next])) ++next;
    while (next < chunks.size() && length + chunks[next].size() <= w.width) {
      length += chunks[next].size();
      current.push_back(std::move(chunks[next++]));
    }
    if (next < chunks.size() && chunks[next].size() > w.width) {
      budget.spend_items(chunks[next].size());
      if (w.cut_long_words) {
        current.push_back(cut_long(chunks[next], w.width - length, w.at_hyphens));
      } else if (current.empty()) {
        current.push_back(std::move(chunks[next++]));
      }
    }
    if (!current.empty() && all_blank(current.back())) current.pop_back();
    if (!current.empty()) lines.push_back(encoded(current));
  }
  return lines;
}

}  // namespace

Value wordwrap(Call& call) {
  const Parameters p(call, "wordwrap",
                     {"s", "width", "break_long_words", "wrapstring", "break_on_hyphens"}, 1);
  const std::string text = subject(call);
  const int64_t width = p.whole(1, 79);
  MG_CHECK(width > 0, "invalid width {} (must be > 0)", width);
  const Wrapping wrapping{static_cast<size_t>(width), p.flag(2, true), p.flag(4, true)};
  const std::string newline = p.given_and_not_none(3) ? p.text(3) : "\n";
  std::string result;
  const std::vector<std::string_view> lines = split_lines(text, call.budget);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += newline;
    const std::vector<std::string> pieces = wrap_line(lines[i], wrapping, call.budget);
    for (size_t k = 0; k < pieces.size(); ++k) {
      if (k > 0) result += newline;
      result += pieces[k];
      call.budget.check_length(result.size());
    }
  }
  call.budget.spend_bytes(result.size());
  return Value::text(std::move(result), &call.budget);
}

}  // namespace megatron::jinja
