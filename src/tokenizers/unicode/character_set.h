// Character sets of regular expressions.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {

class CharacterSet {
 public:
  static constexpr char32_t kLast = 0x10ffff;
  struct Range {
    char32_t first, last;
    bool operator==(const Range&) const = default;
  };

  CharacterSet() = default;
  CharacterSet(char32_t first, char32_t last) : ranges_{{first, last}} {}
  static CharacterSet of_categories(CategorySet categories);
  static CharacterSet white_space();
  static CharacterSet word();
  // Characters of a general category of Unicode 16 by name (L, Lu, Letter, ...), or of any
  // property; properties that are not categories (Han, Alphabetic, ...) come from ICU. Return false
  // if there is none of that name.
  static bool general_category(std::string_view name, CharacterSet& out);
  static bool property(std::string_view name, CharacterSet& out);

  const std::vector<Range>& ranges() const { return ranges_; }  // ascending, separated by gaps
  bool empty() const { return ranges_.empty(); }
  bool contains(char32_t c) const;
  bool intersects(const CharacterSet& other) const;
  bool operator==(const CharacterSet&) const = default;

  void add(char32_t first, char32_t last);
  void add(const CharacterSet& other);
  void complement();
  void intersect(const CharacterSet& other);
  void add_other_cases();  // all characters with the same case folding

 private:
  void tidy();
  std::vector<Range> ranges_;
};

}  // namespace megatron::tokenizers
