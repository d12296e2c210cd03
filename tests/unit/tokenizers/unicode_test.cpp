// Character tables, compared with ICU for the properties that it knows, and characters newer than
// ICU.
#include "tokenizers/unicode/unicode.h"

#include <gtest/gtest.h>
#include <unicode/uchar.h>

#include <string>

namespace megatron::tokenizers {
namespace {

constexpr char32_t kEnd = 0x110000;

TEST(Unicode, CategoriesAreIcusWhereNoLaterVersionChangedThem) {
  constexpr Category kOf[] = {Category::Cn, Category::Lu, Category::Ll, Category::Lt, Category::Lm,
                              Category::Lo, Category::Mn, Category::Me, Category::Mc, Category::Nd,
                              Category::Nl, Category::No, Category::Zs, Category::Zl, Category::Zp,
                              Category::Cc, Category::Cf, Category::Co, Category::Cs, Category::Pd,
                              Category::Ps, Category::Pe, Category::Pc, Category::Po, Category::Sm,
                              Category::Sc, Category::Sk, Category::So, Category::Pi, Category::Pf};
  int changed = 0;
  for (char32_t c = 0; c < kEnd; ++c) {
    if (is_assigned_in(c, 15)) changed += category(c) != kOf[u_charType(static_cast<UChar32>(c))];
  }
  EXPECT_LE(changed, 3);
}

TEST(Unicode, WhiteSpaceAndWordsAreIcus) {
  for (char32_t c = 0; c < kEnd; ++c) {
    const auto u = static_cast<UChar32>(c);
    ASSERT_EQ(is_white_space(c), u_isUWhiteSpace(u) != 0) << std::hex << static_cast<uint32_t>(c);
    if (!is_assigned_in(c, 15)) continue;
    const bool word = u_isUAlphabetic(u) || u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL) ||
                      (U_GET_GC_MASK(u) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
    ASSERT_EQ(is_word_character(c), word) << std::hex << static_cast<uint32_t>(c);
  }
}

TEST(Unicode, LowerCaseIsIcus) {
  for (char32_t c = 0; c < kEnd; ++c) {
    if (is_assigned_in(c, 15)) {
      ASSERT_EQ(lowercase(c), static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
    }
  }
  std::string text;
  append_lowercase(0x130, text);  // one capital gives two letters
  EXPECT_EQ(text, "i\xcc\x87");
}

TEST(Unicode, KnowsCharactersOfUnicode16AndCaseOf17) {
  EXPECT_EQ(category(0x1c89), Category::Lu);
  EXPECT_EQ(lowercase(0x1c89), 0x1c8au);
  EXPECT_EQ(category(0x10d50), Category::Lu);  // Garay
  EXPECT_EQ(lowercase(0x10d50), 0x10d70u);
  EXPECT_EQ(category(0x10d40), Category::Nd);
  EXPECT_EQ(category(0x113d1), Category::Lo);  // Tulu-Tigalari
  EXPECT_EQ(category(0x1fae9), Category::So);  // an emoji of Unicode 16
  EXPECT_EQ(category(0x16ea0), Category::Cn);  // a letter of Unicode 17
  EXPECT_EQ(lowercase(0x16ea0), 0x16ebbu);
  EXPECT_EQ(lowercase(0xab6c), 0xab6cu);   // a capital of Unicode 18
  EXPECT_TRUE(is_word_character(0x24b6));  // alphabetic, but not a letter
  EXPECT_TRUE(is_word_character(0x200d));
  EXPECT_EQ(category(0x110000), Category::Cn);
}

TEST(Unicode, OlderVersions) {
  EXPECT_EQ(category_in_8(0x166d), Category::Po);
  EXPECT_EQ(category_in_8(0x1734), Category::Mn);
  EXPECT_EQ(category_in_8(0x2e43), Category::Cn);  // punctuation of Unicode 9
  EXPECT_EQ(category_in_8('!'), Category::Po);
  EXPECT_TRUE(is_mark_in_9(0x301));
  EXPECT_TRUE(is_mark_in_9(0x1cf2));
  EXPECT_FALSE(is_mark_in_9(0x897));  // added in Unicode 16
}

}  // namespace
}  // namespace megatron::tokenizers
