#include "tokenizers/unicode/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "base/utf8.h"
#include "tokenizers/unicode/unicode_tables.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kLimit = 0x110000;
constexpr size_t kBlock = 128;

// The runs expanded to blocks; equal blocks are stored once.
struct ClassTable {
  std::array<uint16_t, kLimit / kBlock> block_of;
  std::vector<std::array<uint8_t, kBlock>> blocks;

  ClassTable() {
    std::map<std::array<uint8_t, kBlock>, uint16_t> known;
    size_t run = 0;
    for (size_t b = 0; b < block_of.size(); ++b) {
      std::array<uint8_t, kBlock> block;
      for (size_t i = 0; i < kBlock; ++i) {
        const size_t c = b * kBlock + i;
        while (run + 1 < kClassRunCount && kClassRuns[run + 1] >> 8 <= c) ++run;
        block[i] = static_cast<uint8_t>(kClassRuns[run]);
      }
      const auto [place, is_new] = known.try_emplace(block, static_cast<uint16_t>(blocks.size()));
      if (is_new) blocks.push_back(block);
      block_of[b] = place->second;
    }
  }
};

uint8_t flags_of(char32_t c) {
  static const ClassTable table;
  if (c >= kLimit) return 0;
  return table.blocks[table.block_of[c / kBlock]][c % kBlock];
}

}  // namespace

Category category(char32_t c) { return static_cast<Category>(flags_of(c) & kCategoryBits); }

bool is_white_space(char32_t c) { return (flags_of(c) & kSpaceBit) != 0; }

bool is_word_character(char32_t c) { return (flags_of(c) & kWordBit) != 0; }

bool is_assigned_in(char32_t c, int major) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] != 0 && age[0] <= major;
}

Category category_in_8(char32_t c) {
  switch (c) {  // those that a later version classed anew
    case 0x166d:
    case 0x111c9: return Category::Po;
    case 0x1734:
    case 0x1171e: return Category::Mn;
    case 0x1885:
    case 0x1886: return Category::Lo;
    case 0xa9bd: return Category::Mc;
    default: return is_assigned_in(c, 8) ? category(c) : Category::Cn;
  }
}

bool is_mark_in_9(char32_t c) {
  if (c == 0x1cf2 || c == 0x1cf3) return true;  // Lo since
  return is_mark(c) && c != 0x111c9 && is_assigned_in(c, 9);
}

char32_t lowercase(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  const LowerCaseRun* end = kLowerCaseRuns + kLowerCaseRunCount;
  const LowerCaseRun* run = std::upper_bound(
      kLowerCaseRuns, end, c, [](char32_t x, const LowerCaseRun& r) { return x <= r.last; });
  if (run == end || c < run->first) return c;
  const auto offset = static_cast<int32_t>(c - run->first);
  if (offset % run->step != 0) return c;
  return static_cast<char32_t>(static_cast<int32_t>(c) + run->distance);
}

void append_lowercase(char32_t c, std::string& out) {
  append_character(lowercase(c), out);
  if (c == 0x130) append_character(0x307, out);
}

}  // namespace megatron::tokenizers
