#include "tokenizers/unicode/grapheme.h"

#include <unicode/uchar.h>

#include "base/utf8.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

// Marks that are new in Unicode 17 and absent from the tables here.
bool is_mark_of_17(char32_t c) {
  const auto between = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return between(0x1acf, 0x1add) || between(0x1ae0, 0x1aeb) || between(0x10efa, 0x10efb) ||
         between(0x11b60, 0x11b67) || c == 0x1e6e3 || c == 0x1e6e6 || between(0x1e6ee, 0x1e6ef) ||
         c == 0x1e6f5;
}

int break_class(char32_t c) {
  const int value = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK);
  if (value != U_GCB_OTHER || c < 0x300) return value;
  if (!is_mark(c)) return is_mark_of_17(c) ? U_GCB_EXTEND : U_GCB_OTHER;
  const bool is_newer = !is_assigned_in(c, 15);  // newer than ICU's tables
  return is_newer || category(c) != Category::Mc ? U_GCB_EXTEND : U_GCB_OTHER;
}

bool is_pictographic(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_EXTENDED_PICTOGRAPHIC);
}

// State of the preceding characters that the rules need.
struct Before {
  int last;             // break class
  bool pictographic;    // the cluster is a pictograph with its extending characters
  bool joined;          // ... and ends with a joiner
  bool odd_indicators;  // it ends with an odd number of regional indicators
};

bool is_control(int value) {
  return value == U_GCB_CONTROL || value == U_GCB_CR || value == U_GCB_LF;
}

bool joins_hangul(int last, int next) {
  switch (last) {
    case U_GCB_L:
      return next == U_GCB_L || next == U_GCB_V || next == U_GCB_LV || next == U_GCB_LVT;
    case U_GCB_LV:
    case U_GCB_V: return next == U_GCB_V || next == U_GCB_T;
    case U_GCB_LVT:
    case U_GCB_T: return next == U_GCB_T;
    default: return false;
  }
}

bool joins(const Before& before, int next, char32_t c) {
  if (before.last == U_GCB_CR && next == U_GCB_LF) return true;
  if (is_control(before.last) || is_control(next)) return false;
  if (joins_hangul(before.last, next)) return true;
  if (next == U_GCB_EXTEND || next == U_GCB_ZWJ || next == U_GCB_SPACING_MARK) return true;
  if (before.last == U_GCB_PREPEND) return true;
  if (before.joined && is_pictographic(c)) return true;
  return before.odd_indicators && next == U_GCB_REGIONAL_INDICATOR;
}

}  // namespace

size_t grapheme_end(std::string_view text, size_t begin) {
  const char32_t first = character_at(text, begin);
  const int first_class = break_class(first);
  Before before{first_class, is_pictographic(first), false,
                first_class == U_GCB_REGIONAL_INDICATOR};
  size_t end = begin + static_cast<size_t>(character_size(text[begin]));
  while (end < text.size()) {
    const char32_t c = character_at(text, end);
    const int next = break_class(c);
    if (!joins(before, next, c)) break;
    before.joined = before.pictographic && next == U_GCB_ZWJ;
    before.pictographic = is_pictographic(c) || (before.pictographic && (next == U_GCB_EXTEND));
    if (before.joined) before.pictographic = false;
    before.odd_indicators = next == U_GCB_REGIONAL_INDICATOR && !before.odd_indicators;
    before.last = next;
    end += static_cast<size_t>(character_size(text[end]));
  }
  return end;
}

}  // namespace megatron::tokenizers
