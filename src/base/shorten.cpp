#include "base/shorten.h"

#include <algorithm>
#include <string_view>

#include "base/text_parts.h"
#include "base/utf8.h"

namespace megatron {
namespace {

// The line with [begin, end) replaced, after widening the range to whole UTF-8 sequences.
std::string without(const std::string& line, size_t begin, size_t end, std::string_view gap) {
  while (begin > 0 && continues_character(line[begin])) --begin;
  while (end < line.size() && continues_character(line[end])) ++end;
  return line.substr(0, begin) + std::string(gap) + line.substr(end);
}

std::string shortened_line(std::string line, size_t most) {
  constexpr size_t kKept = 30;  // bytes kept at each end of a word
  while (line.size() > most) {
    size_t begin = 0, size = 0;  // of the longest word
    for (size_t from = 0; from < line.size();) {
      const size_t to = std::min(line.find(' ', from), line.size());
      if (to - from > size) {
        begin = from;
        size = to - from;
      }
      from = to + 1;
    }
    if (size > 2 * kKept + 20) {
      // The excess, or as much as the word can lose.
      const size_t excess = line.size() - most + 8;
      const size_t cut = std::min(excess, size - 2 * kKept);
      const size_t first = begin + (size - cut) / 2;
      line = without(line, first, first + cut, "...");
    } else {
      const size_t first = most / 2 - 8;
      line = without(line, first, first + (line.size() - most) + 16, " ... ");
    }
  }
  return line;
}

}  // namespace

std::string cut_short(std::string_view text, size_t most, std::string_view mark) {
  const std::string_view kept = whole_characters(text, most);
  return std::string(kept) + std::string(kept.size() < text.size() ? mark : "");
}

std::string shortened(const std::string& message, size_t most) {
  if (message.size() <= most) return message;
  std::string result;
  for (const std::string_view line : split_text(message, '\n'))
    result += shortened_line(std::string(line), most) + '\n';
  result.pop_back();
  return result;
}

}  // namespace megatron
