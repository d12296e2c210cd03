// Vocabulary, regular expressions, pre-tokenizers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "tokenizers/unicode/unicode.h"
#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {
namespace {

using Strings = std::vector<std::string>;

TEST(Unicode, WordCharactersAndSpaces) {
  EXPECT_TRUE(is_white_space(0x85) && is_white_space(0x3000) && is_white_space('\t'));
  EXPECT_FALSE(is_white_space(0x180e) || is_white_space(0x200b) || is_white_space(0x1c));
  EXPECT_TRUE(is_word_character('_') && is_word_character(0x200d) && is_word_character(0xe9));
  EXPECT_FALSE(is_word_character('-') || is_word_character(' '));
}

TEST(ByteLevelLetters, EveryByteThereAndBack) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  std::string back;
  EXPECT_TRUE(append_bytes_of_letters(letters_of_bytes(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(letters_of_bytes(" \n"), "\xc4\xa0\xc4\x8a");
  EXPECT_FALSE(append_bytes_of_letters("\xe4\xb8\xad", back));
  EXPECT_EQ(back, all);
}

TEST(VocabularyTest, RefusesTwoTokensOfOneIdAndTwoIdsOfOneToken) {
  Vocabulary vocabulary;
  vocabulary.add("a", 5);
  EXPECT_THROW(vocabulary.add("b", 5), Error);
  EXPECT_THROW(vocabulary.add("a", 6), Error);
  EXPECT_THROW(vocabulary.add("c", -1), Error);
  EXPECT_THROW(vocabulary.add("c", int64_t{1} << 40), Error);
  EXPECT_EQ(vocabulary.size(), 6);
  EXPECT_EQ(vocabulary.count(), 1);
  EXPECT_FALSE(vocabulary.contains(0));
  for (int i = 0; i < 5000; ++i) vocabulary.add(fmt::format("t{}", i), 10 + i);
  EXPECT_EQ(vocabulary.find("t4321"), 4331);
  EXPECT_EQ(vocabulary.text(4331), "t4321");
}

Strings split(const Json& settings, std::string_view text) {
  RegexScratch scratch;
  Strings pieces;
  make_pre_tokenizer(settings)->split({.bytes = text}, scratch,
                                      [&](TextView piece) { pieces.emplace_back(piece.bytes); });
  return pieces;
}

Json split_settings(const char* kind, const char* pattern, const char* behavior,
                    bool invert = false) {
  return Json::Object{{"type", "Split"},
                      {"pattern", Json::Object{{kind, pattern}}},
                      {"behavior", behavior},
                      {"invert", invert}};
}

TEST(PreTokenizers, SplitBehaviours) {
  const auto at_dash = [](const char* behavior, bool invert = false) {
    return split(split_settings("String", "-", behavior, invert), "-the--final-countdown-");
  };
  EXPECT_EQ(at_dash("Removed"), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(at_dash("Removed", true), (Strings{"-", "-", "-", "-", "-"}));
  EXPECT_EQ(at_dash("Isolated"), (Strings{"-", "the", "-", "-", "final", "-", "countdown", "-"}));
  EXPECT_EQ(at_dash("MergedWithPrevious"), (Strings{"-", "the-", "-", "final-", "countdown-"}));
  EXPECT_EQ(at_dash("MergedWithPrevious", true),
            (Strings{"-the", "-", "-final", "-countdown", "-"}));
  EXPECT_EQ(at_dash("MergedWithNext"), (Strings{"-the", "-", "-final", "-countdown", "-"}));
  EXPECT_EQ(at_dash("MergedWithNext", true), (Strings{"-", "the-", "-", "final-", "countdown-"}));
  EXPECT_EQ(at_dash("Contiguous"), (Strings{"-", "the", "--", "final", "-", "countdown", "-"}));
}

TEST(PreTokenizers, EmptyMatchesCutToo) {
  EXPECT_EQ(split(split_settings("Regex", "x*", "Isolated"), "axxb"), (Strings{"a", "xx", "b"}));
}

TEST(PreTokenizers, SpaceIsTheUnicodeProperty) {
  EXPECT_EQ(split(split_settings("Regex", "\\s", "Removed"),
                  "a\xc2\x85"
                  "b\xe1\xa0\x8e"
                  "c\x1c"
                  "d e"),
            (Strings{"a",
                     "b\xe1\xa0\x8e"
                     "c\x1c"
                     "d",
                     "e"}));
  EXPECT_EQ(split(split_settings("Regex", "[^\\S\\n]", "Removed"), "a b\nc"),
            (Strings{"a", "b\nc"}));
  EXPECT_EQ(split(split_settings("Regex", "\\w+", "Removed"), "a_\xe2\x80\x8d-\xcc\x81!"),
            (Strings{"\xe2\x80\x8d-", "!"}));
}

TEST(PreTokenizers, ByteLevelCutsAsGpt2Does) {
  const Json settings =
      Json::Object{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_EQ(split(settings, "I'm 25  years\n\nold!"),
            (Strings{" I", "'m", " 25", " ", " years", "\n", "\n", "old", "!"}));
}

TEST(PreTokenizers, RefusesByName) {
  const auto message = [](const Json& settings) -> std::string {
    try {
      make_pre_tokenizer(settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(Json::Object{{"type", "Scissors"}}).find("'Scissors' is unknown"),
            std::string::npos);
  EXPECT_NE(message(split_settings("Regex", "a(", "Isolated")).find("regular expression 'a('"),
            std::string::npos);
  EXPECT_NE(message(split_settings("Regex", "a", "Sideways")).find("'Sideways' is unknown"),
            std::string::npos);
}

TEST(PreTokenizers, RunawayExpressionsEndInAnError) {
  EXPECT_THROW(split(split_settings("Regex", "(a|aa)+[bc]", "Isolated"), std::string(64, 'a')),
               Error);
}

}  // namespace
}  // namespace megatron::tokenizers
