#include "tokenizers/unicode/character_set.h"

#include <unicode/uset.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "tokenizers/unicode/unicode_tables.h"

namespace megatron::tokenizers {
namespace {

struct NamedCategories {
  std::string_view brief, name;
  CategorySet set;
};

constexpr CategorySet one(Category c) { return set_of(c); }

constexpr std::array kCategories = {
    NamedCategories{"L", "letter", kLetters},
    NamedCategories{"Lu", "uppercaseletter", one(Category::Lu)},
    NamedCategories{"Ll", "lowercaseletter", one(Category::Ll)},
    NamedCategories{"Lt", "titlecaseletter", one(Category::Lt)},
    NamedCategories{"Lm", "modifierletter", one(Category::Lm)},
    NamedCategories{"Lo", "otherletter", one(Category::Lo)},
    NamedCategories{"M", "mark", kMarks},
    NamedCategories{"Mn", "nonspacingmark", one(Category::Mn)},
    NamedCategories{"Mc", "spacingmark", one(Category::Mc)},
    NamedCategories{"Me", "enclosingmark", one(Category::Me)},
    NamedCategories{"N", "number", kNumbers},
    NamedCategories{"Nd", "decimalnumber", one(Category::Nd)},
    NamedCategories{"Nl", "letternumber", one(Category::Nl)},
    NamedCategories{"No", "othernumber", one(Category::No)},
    NamedCategories{"P", "punctuation", kPunctuation},
    NamedCategories{"Pc", "connectorpunctuation", one(Category::Pc)},
    NamedCategories{"Pd", "dashpunctuation", one(Category::Pd)},
    NamedCategories{"Ps", "openpunctuation", one(Category::Ps)},
    NamedCategories{"Pe", "closepunctuation", one(Category::Pe)},
    NamedCategories{"Pi", "initialpunctuation", one(Category::Pi)},
    NamedCategories{"Pf", "finalpunctuation", one(Category::Pf)},
    NamedCategories{"Po", "otherpunctuation", one(Category::Po)},
    NamedCategories{"S", "symbol", kSymbols},
    NamedCategories{"Sm", "mathsymbol", one(Category::Sm)},
    NamedCategories{"Sc", "currencysymbol", one(Category::Sc)},
    NamedCategories{"Sk", "modifiersymbol", one(Category::Sk)},
    NamedCategories{"So", "othersymbol", one(Category::So)},
    NamedCategories{"Z", "separator", kSeparators},
    NamedCategories{"Zs", "spaceseparator", one(Category::Zs)},
    NamedCategories{"Zl", "lineseparator", one(Category::Zl)},
    NamedCategories{"Zp", "paragraphseparator", one(Category::Zp)},
    NamedCategories{"C", "other", kOthers},
    NamedCategories{"Cc", "control", one(Category::Cc)},
    NamedCategories{"Cf", "format", one(Category::Cf)},
    NamedCategories{"Cs", "surrogate", one(Category::Cs)},
    NamedCategories{"Co", "privateuse", one(Category::Co)},
    NamedCategories{"Cn", "unassigned", one(Category::Cn)},
};

template <class F>
CharacterSet of_runs(F&& belongs) {
  CharacterSet set;
  for (size_t i = 0; i < kClassRunCount; ++i) {
    const char32_t first = kClassRuns[i] >> 8;
    const char32_t last =
        i + 1 < kClassRunCount ? (kClassRuns[i + 1] >> 8) - 1 : CharacterSet::kLast;
    if (belongs(static_cast<uint8_t>(kClassRuns[i]))) set.add(first, last);
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
  std::string plain;
  for (const char c : name) {
    if (c != '_' && c != ' ' && c != '-')
      plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  }
  for (const NamedCategories& known : kCategories) {
    if (name != known.brief && plain != known.name) continue;
    out = of_categories(known.set);
    return true;
  }
  return false;
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
  const bool in_order = ranges_.empty() || ranges_.back().last < first;
  ranges_.push_back({first, last});
  if (!in_order || (ranges_.size() > 1 && ranges_[ranges_.size() - 2].last + 1 == first)) tidy();
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
