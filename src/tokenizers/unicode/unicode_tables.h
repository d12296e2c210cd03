// The data behind unicode.h, written by tools/unicode_tables.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace megatron::tokenizers {

// Runs of characters of one kind, in ascending order: the first character << 8 | flags. The flags
// are the Category, 32 for \w and 64 for White_Space.
extern const uint32_t kClassRuns[];
extern const size_t kClassRunCount;

constexpr uint8_t kCategoryBits = 31, kWordBit = 32, kSpaceBit = 64;

// The simple lower case of every step-th character of first..last is at `distance` from it.
struct LowerCaseRun {
  uint32_t first, last;
  int32_t step, distance;
};
extern const LowerCaseRun kLowerCaseRuns[];
extern const size_t kLowerCaseRunCount;

}  // namespace megatron::tokenizers
