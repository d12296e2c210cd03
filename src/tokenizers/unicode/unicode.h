// Character classes of Unicode 16 and lower case of Unicode 17, as used by the regular expressions
// and Lowercase of Hugging Face's tokenizers 0.23. ICU 72 has Unicode 15 and PCRE2 10.42 has
// Unicode 14, so what is newer comes from tables here.
//
// Older parts of that library use older versions: BertNormalizer and the punctuation classes use
// Unicode 8 (category_in_8), normal forms and StripAccents use Unicode 9 (is_assigned_in,
// is_mark_in_9). The normal forms themselves are ICU's.
#pragma once

#include <cstdint>
#include <string>

namespace megatron::tokenizers {

// General categories by the standard's names, in the order of ICU's UCharCategory.
// clang-format off
enum class Category : uint8_t {
  Cn, Lu, Ll, Lt, Lm, Lo, Mn, Me, Mc, Nd, Nl, No, Zs, Zl, Zp,
  Cc, Cf, Co, Cs, Pd, Ps, Pe, Pc, Po, Sm, Sc, Sk, So, Pi, Pf
};
// clang-format on

// Characters above U+10FFFF are Cn.
Category category(char32_t c);

// Sets of categories.
using CategorySet = uint32_t;
constexpr CategorySet set_of(Category c) { return CategorySet{1} << static_cast<int>(c); }
constexpr CategorySet set_of(Category first, Category last) {  // in the order of the enumeration
  return set_of(last) * 2 - set_of(first);
}
inline constexpr CategorySet kLetters = set_of(Category::Lu, Category::Lo);
inline constexpr CategorySet kMarks = set_of(Category::Mn, Category::Mc);
inline constexpr CategorySet kNumbers = set_of(Category::Nd, Category::No);
inline constexpr CategorySet kPunctuation =
    set_of(Category::Pd, Category::Po) | set_of(Category::Pi, Category::Pf);

inline bool is_in(char32_t c, CategorySet set) { return (set_of(category(c)) & set) != 0; }
inline bool is_letter(char32_t c) { return is_in(c, kLetters); }  // \p{L}
inline bool is_mark(char32_t c) { return is_in(c, kMarks); }      // \p{M}
inline bool is_number(char32_t c) { return is_in(c, kNumbers); }  // \p{N}

bool is_white_space(char32_t c);     // property White_Space
bool is_word_character(char32_t c);  // \w of UTS 18: Alphabetic, M, Nd, Pc, Join_Control

// True if Unicode `major`.x has the character; major is at most 15.
bool is_assigned_in(char32_t c, int major);

// The category in Unicode 8; Cn for later characters.
Category category_in_8(char32_t c);
bool is_mark_in_9(char32_t c);  // category M in Unicode 9: what StripAccents drops

// The simple lower case, or c if it has none. Full lower case, letter by letter, differs only for
// U+0130, which becomes i and U+0307: append_lowercase does that (in UTF-8).
char32_t lowercase(char32_t c);
void append_lowercase(char32_t c, std::string& out);

}  // namespace megatron::tokenizers
