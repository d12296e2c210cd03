// Valid and broken UTF-8, and words as a shell reads them.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/columns.h"
#include "base/shell_line.h"

namespace megatron {
namespace {

std::string lossy(std::string_view bytes) {
  std::string out;
  append_lossy(bytes, true, out);
  return out;
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(first_invalid_byte("plain, and a long run of ASCII \xc3\xa9 \xf0\x9f\x98\x80"), 38u);
  EXPECT_EQ(first_invalid_byte("ab\x80"), 2u);
  EXPECT_EQ(first_invalid_byte("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(first_invalid_byte("a\xed\xa0\x80"), 1u);     // a surrogate
  EXPECT_EQ(first_invalid_byte("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(first_invalid_byte("abc\xe2\x82"), 3u);       // cut off
}

TEST(Utf8, LossyReadingHasOneMarkForEachMaximalBrokenPart) {
  EXPECT_EQ(lossy("a\xe2\x82"
                  "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(lossy("\xf0\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(lossy("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  std::string out;
  EXPECT_EQ(append_lossy("a\xe2\x82", false, out), 1u);
  EXPECT_EQ(out, "a");
}

TEST(Utf8, IsValidOrNot) {
  EXPECT_TRUE(is_utf8("aé日👩"));
  for (const char* bad : {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xc3", "\xf0\x9f\x91", "\xff"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

TEST(Utf8, CharactersAreCountedAndFound) {
  const std::string_view text = "aé日👩";
  EXPECT_EQ(count_characters(text), 4);
  EXPECT_EQ(character_offset(text, 0), 0u);
  EXPECT_EQ(character_offset(text, 3), 6u);
  EXPECT_EQ(character_offset(text, 9), text.size());
  std::vector<char32_t> read;
  for (size_t at = 0; at < text.size();) read.push_back(next_character(text, at));
  EXPECT_EQ(read, (std::vector<char32_t>{'a', 0xe9, 0x65e5, 0x1f469}));
  std::string again;
  for (const char32_t c : read) append_character(c, again);
  EXPECT_EQ(again, text);
}

TEST(Utf8, BrokenPartsAreReadAsOneCharacterEach) {
  const std::string_view text =
      "\xe2\x82"
      "b\xff";
  std::vector<char32_t> read;
  for (size_t at = 0; at < text.size();) read.push_back(next_character(text, at));
  EXPECT_EQ(read, (std::vector<char32_t>{0xfffd, 'b', 0xfffd}));
  EXPECT_EQ(display_columns(text), 3);
}

TEST(Utf8, TextIsCutBetweenCharacters) {
  const std::string_view text = "aé日";
  const std::string_view kept[] = {"", "a", "a", "aé", "aé", "aé", "aé日", "aé日"};
  for (size_t most = 0; most < std::size(kept); ++most)
    EXPECT_EQ(whole_characters(text, most), kept[most]) << most;
}

TEST(Utf8, SurrogatesOfJson) {
  EXPECT_EQ(json_escape(0xe9), "\\u00e9");
  EXPECT_EQ(json_escape(0x1f469), "\\ud83d\\udc69");
  EXPECT_EQ(json_escape(0x10ffff), "\\udbff\\udfff");
  EXPECT_EQ(joined_surrogates(0xd83d, 0xdc69), 0x1f469);
  EXPECT_EQ(joined_surrogates(0xdbff, 0xdfff), 0x10ffff);
  EXPECT_EQ(joined_surrogates(0xdc69, 0xd83d), std::nullopt);
  EXPECT_EQ(joined_surrogates(0xd83d, 'a'), std::nullopt);
}

TEST(ShellLine, ShowsWordsAsAShellReadsThem) {
  EXPECT_EQ(shell_line({"mpirun", "-np", "2", "a b", "", "it's", "$(x)", "--x=1,2:3"}),
            "mpirun -np 2 'a b' '' 'it'\\''s' '$(x)' --x=1,2:3");
}

}  // namespace
}  // namespace megatron
