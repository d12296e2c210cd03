// Data of unicode.h. ICU has the characters of Unicode 14; additions and changes of later versions
// are in unicode_tables.cpp, which tools/unicode_tables.py writes.
#pragma once

#include <span>
#include <vector>

#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {

struct CategoryRun {
  char32_t first, last;
  Category category;
};
extern const std::span<const CategoryRun> kLaterCategories;  // up to Unicode 16

// The lower case of first..last is at `distance` from them.
struct LowerCaseRun {
  char32_t first, last;
  int32_t distance;
};
extern const std::span<const LowerCaseRun> kLaterLowerCases;  // up to Unicode 17

// Runs of characters of one kind, in ascending order. The flags are the Category, 32 for \w and 64
// for White_Space.
constexpr uint8_t kCategoryBits = 31, kWordBit = 32, kSpaceBit = 64;
struct ClassRun {
  char32_t first, last;
  uint8_t flags;
};
const std::vector<ClassRun>& class_runs();

}  // namespace megatron::tokenizers
