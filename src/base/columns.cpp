#include "base/columns.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/utf8.h"

namespace megatron {
namespace {

struct Range {
  uint32_t first, last;
};

// Code points with Unicode's East_Asian_Width W or F; neighbouring blocks are merged.
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},
                           {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},
                           {0x4e00, 0xa4cf},   {0xa960, 0xa97f},   {0xac00, 0xd7a3},
                           {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},
                           {0xffe0, 0xffe6},   {0x16fe0, 0x18aff}, {0x1b000, 0x1b2ff},
                           {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f7e0, 0x1f7eb},
                           {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd}};
// Combining marks, joiners, variation selectors.
constexpr Range kNone[] = {{0x0300, 0x036f}, {0x0483, 0x0489},  {0x0591, 0x05bd}, {0x0610, 0x061a},
                           {0x064b, 0x065f}, {0x0900, 0x0902},  {0x0e31, 0x0e31}, {0x0e34, 0x0e3a},
                           {0x0e47, 0x0e4e}, {0x200b, 0x200f},  {0x20d0, 0x20ff}, {0xfe00, 0xfe0f},
                           {0xfe20, 0xfe2f}, {0xe0100, 0xe01ef}};

template <size_t N>
bool within(const Range (&ranges)[N], uint32_t character) {
  const Range* range = std::ranges::lower_bound(ranges, character, {}, &Range::last);
  return range != std::end(ranges) && range->first <= character;
}

int columns_of(char32_t character) {
  return within(kNone, character) ? 0 : within(kWide, character) ? 2 : 1;
}

}  // namespace

int display_columns(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) columns += columns_of(next_character(text, at));
  return columns;
}

std::string_view cut_columns(std::string_view text, int columns) {
  size_t end = 0;
  for (size_t at = 0; at < text.size(); end = at) {
    columns -= columns_of(next_character(text, at));
    if (columns < 0) break;
  }
  return text.substr(0, end);
}

std::string without_controls(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return out;
}

std::string aligned_columns(const std::vector<std::vector<std::string>>& rows,
                            const std::vector<bool>& is_number) {
  std::vector<int> widths(is_number.size());
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], display_columns(row[c]));
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(static_cast<size_t>(widths[c] - display_columns(row[c])), ' ');
      line += (c == 0 ? "" : "  ") + (is_number[c] ? space + row[c] : row[c] + space);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace megatron
