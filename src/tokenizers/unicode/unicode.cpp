#include "tokenizers/unicode/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "tokenizers/unicode/unicode_tables.h"

namespace megatron::tokenizers {
namespace {

constexpr char32_t kLimit = 0x110000;
constexpr CategorySet kWordCategories =
    kLetters | kMarks | set_of(Category::Nd) | set_of(Category::Nl) | set_of(Category::Pc);

static_assert(static_cast<int>(Category::Lo) == U_OTHER_LETTER);
static_assert(static_cast<int>(Category::Pf) == U_FINAL_PUNCTUATION);

uint8_t flags_from(Category category, char32_t c) {
  const auto u = static_cast<UChar32>(c);
  const bool joins = c == 0x200c || c == 0x200d;
  const bool word = (set_of(category) & kWordCategories) != 0 || u_isUAlphabetic(u) || joins;
  return static_cast<uint8_t>(static_cast<int>(category) | (word ? kWordBit : 0) |
                              (u_isUWhiteSpace(u) ? kSpaceBit : 0));
}

// Sets the flags in `context` of a run of characters that ICU reports; characters newer than
// Unicode 14 are skipped.
UBool add_run(const void* context, UChar32 first, UChar32 end, UCharCategory category) {
  if (category == U_UNASSIGNED) return true;
  auto& flags = *static_cast<std::vector<uint8_t>*>(const_cast<void*>(context));
  for (auto c = static_cast<char32_t>(first); c < static_cast<char32_t>(end); ++c)
    if (is_assigned_in(c, 14)) flags[c] = flags_from(static_cast<Category>(category), c);
  return true;
}

const std::vector<uint8_t>& flags_of_all() {
  static const std::vector<uint8_t> all = [] {
    std::vector<uint8_t> flags(kLimit);
    u_enumCharTypes(add_run, &flags);
    for (const CategoryRun& run : kLaterCategories)
      for (char32_t c = run.first; c <= run.last; ++c) flags[c] = flags_from(run.category, c);
    return flags;
  }();
  return all;
}

uint8_t flags_of(char32_t c) { return c < kLimit ? flags_of_all()[c] : 0; }

}  // namespace

const std::vector<ClassRun>& class_runs() {
  static const std::vector<ClassRun> all = [] {
    std::vector<ClassRun> runs;
    char32_t c = 0;
    for (const uint8_t flags : flags_of_all()) {
      if (runs.empty() || runs.back().flags != flags) runs.push_back({c, c, flags});
      runs.back().last = c++;
    }
    return runs;
  }();
  return all;
}

Category category(char32_t c) { return static_cast<Category>(flags_of(c) & kCategoryBits); }

bool is_white_space(char32_t c) { return (flags_of(c) & kSpaceBit) != 0; }

bool is_word_character(char32_t c) { return (flags_of(c) & kWordBit) != 0; }

bool is_assigned_in(char32_t c, int major) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] != 0 && age[0] <= major;
}

Category category_in_8(char32_t c) {
  switch (c) {  // characters that a later version reclassified
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
  if (c == 0x1cf2 || c == 0x1cf3) return true;  // category Lo in later versions
  return is_mark(c) && c != 0x111c9 && is_assigned_in(c, 9);
}

char32_t lowercase(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  const auto lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
  if (lower != c && category(c) != Category::Cn) return lower;
  const auto run = std::ranges::lower_bound(kLaterLowerCases, c, {}, &LowerCaseRun::last);
  if (run == kLaterLowerCases.end() || c < run->first) return c;
  return static_cast<char32_t>(static_cast<int32_t>(c) + run->distance);
}

void append_lowercase(char32_t c, std::string& out) {
  append_character(lowercase(c), out);
  if (c == 0x130) append_character(0x307, out);
}

}  // namespace megatron::tokenizers
