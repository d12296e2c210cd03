#include "tokenizers/unicode/character_set.h"

#include <unicode/uchar.h>
#include <unicode/uset.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tokenizers/unicode/unicode_tables.h"

namespace megatron::tokenizers {
namespace {

template <class F>
CharacterSet of_runs(F&& belongs) {
  CharacterSet set;
  for (const ClassRun& run : class_runs()) {
    if (belongs(run.flags)) set.add(run.first, run.last);
  }
  return set;
}

void add_icu_ranges(const USet* icu, CharacterSet& set) {
  for (int32_t i = 0; i < uset_getItemCount(icu); ++i) {
    UChar32 first = 0, last = 0;
    UErrorCode error = U_ZERO_ERROR;
    if (uset_getItem(icu, i, &first, &last, nullptr, 0, &error) != 0) continue;  // a string
    set.add(static_cast<char32_t>(first), static_cast<char32_t>(last));
  }
}

bool icu_property(std::string_view name, CharacterSet& out) {
  std::u16string pattern = u"[\\p{";
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '=' || c == '-' || c == ' ';
    if (!plain) return false;
    pattern += static_cast<char16_t>(c);
  }
  pattern += u"}]";
  UErrorCode error = U_ZERO_ERROR;
  USet* icu = uset_openPattern(pattern.data(), static_cast<int32_t>(pattern.size()), &error);
  if (U_FAILURE(error)) return false;
  out = {};
  add_icu_ranges(icu, out);
  uset_close(icu);
  return true;
}

}  // namespace

CharacterSet CharacterSet::of_categories(CategorySet categories) {
  return of_runs([&](uint8_t flags) { return (categories >> (flags & kCategoryBits) & 1) != 0; });
}

CharacterSet CharacterSet::white_space() {
  return of_runs([](uint8_t flags) { return (flags & kSpaceBit) != 0; });
}

CharacterSet CharacterSet::word() {
  return of_runs([](uint8_t flags) { return (flags & kWordBit) != 0; });
}

bool CharacterSet::general_category(std::string_view name, CharacterSet& out) {
  const std::string terminated(name);
  const int32_t mask = u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, terminated.c_str());
  if (mask == UCHAR_INVALID_CODE) return false;
  out = of_categories(static_cast<CategorySet>(mask));
  return true;
}

bool CharacterSet::property(std::string_view name, CharacterSet& out) {
  return general_category(name, out) || icu_property(name, out);
}

bool CharacterSet::contains(char32_t c) const {
  const auto next = std::ranges::upper_bound(ranges_, c, {}, &Range::first);
  return next != ranges_.begin() && std::prev(next)->last >= c;
}

bool CharacterSet::intersects(const CharacterSet& other) const {
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    if (a->last < b->first) {
      ++a;
    } else if (b->last < a->first) {
      ++b;
    } else {
      return true;
    }
  }
  return false;
}

void CharacterSet::tidy() {
  std::ranges::sort(ranges_, {}, &Range::first);
  size_t kept = 0;
  for (const Range& range : ranges_) {
    if (kept > 0 && range.first <= ranges_[kept - 1].last + 1) {
      ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, range.last);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

void CharacterSet::add(char32_t first, char32_t last) {
  if (!ranges_.empty() && ranges_.back().last + 1 == first) {
    ranges_.back().last = last;
    return;
  }
  const bool in_order = ranges_.empty() || ranges_.back().last < first;
  ranges_.push_back({first, last});
  if (!in_order) tidy();
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  tidy();
}

void CharacterSet::complement() {
  std::vector<Range> gaps;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (next < range.first) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) gaps.push_back({next, kLast});
  ranges_ = std::move(gaps);
}

void CharacterSet::intersect(const CharacterSet& other) {
  CharacterSet outside = other;
  outside.complement();
  complement();
  add(outside);
  complement();
}

void CharacterSet::add_other_cases() {
  USet* icu = uset_openEmpty();
  for (const Range& range : ranges_)
    uset_addRange(icu, static_cast<UChar32>(range.first), static_cast<UChar32>(range.last));
  uset_closeOver(icu, USET_CASE_INSENSITIVE);
  CharacterSet all;
  add_icu_ranges(icu, all);
  uset_close(icu);
  add(all);
}

}  // namespace megatron::tokenizers
