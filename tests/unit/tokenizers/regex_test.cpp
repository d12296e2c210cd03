// The project's own matcher: equal to PCRE2 on random texts, linear on well-known patterns, and
// bounded on others.
#include "tokenizers/regex/regex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "hang_limit.h"
#include "tokenizers/models/word_cache.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "tokenizers/regex/pcre_regex.h"

namespace megatron::tokenizers {
namespace {

const char* const kO200k =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char* const kDeepSeek =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char* const kClip =
    "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|"
    "[^\\s\\p{L}\\p{N}]+";

std::vector<std::string> matches(const Regex& regex, std::string_view text) {
  std::vector<std::string> found;
  RegexScratch scratch;
  Regex::Match match;
  for (size_t from = 0; from <= text.size() && regex.find(text, from, match, scratch);) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
    from = match.end + (match.begin == match.end ? 1 : 0);
  }
  return found;
}
using Strings = std::vector<std::string>;

std::string random_text(std::mt19937& random) {
  constexpr char32_t kPool[] = {
      'a',   'a',     'b',    'c',   ' ',   ' ',   '\n', '\'',   's',     '1',    'A',
      'B',   'S',     '\r',   '\t',  'l',   '9',   '.',  '<',    '|',     0xe9,   0x17f,
      0x130, 0x4e00,  0x3042, 0x301, 0x2b0, 0x1c5, 0xa0, 0x2003, 0x1f600, 0x200d, 0x660,
      0xbd,  0x10400, '/',    '-',   '!',   't',   'r',  'e',    'v',     'd'};
  const size_t kinds = random() % 3 == 0 ? 10 : std::size(kPool);
  std::string text;
  for (size_t n = random() % 20; n > 0; --n) append_character(kPool[random() % kinds], text);
  return text;
}

class SplitPatterns : public ::testing::TestWithParam<const char*> {};

TEST_P(SplitPatterns, MatchAsInPcre) {
  const Regex ours(GetParam(), RegexSyntax::perl);
  ASSERT_TRUE(ours.is_program());
  const PcreRegex theirs(GetParam(), RegexSyntax::perl);
  RegexScratch scratch;
  PcreScratch pcre_scratch;
  std::mt19937 random(7);
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random);
    for (size_t from = 0; from <= text.size();) {
      Regex::Match a, b;
      const bool found = ours.find(text, from, a, scratch);
      ASSERT_EQ(found, theirs.find(text, from, b, pcre_scratch)) << text;
      if (!found) break;
      ASSERT_EQ(a.begin, b.begin) << text;
      ASSERT_EQ(a.end, b.end) << text;
      from = a.end > a.begin ? a.end : a.end + 1;
      while (from < text.size() && (text[from] & 0xc0) == 0x80) ++from;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, SplitPatterns,
                         ::testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern, kO200k,
                                           kDeepSeek, kClip, "\\p{N}{1,3}",
                                           "(?:a|ab)(?:c|bcd)(?:d*)", "(?:ab?)*+b|a{2,4}b?a",
                                           "(a|b)*a(?=b|\\s)", "^a+|b$|\\s++$|x",
                                           "(?>a|ab)c|(?:a\\w{0,2}){2,3}b", "a*a*a*b|\\w+(?!\\w| )",
                                           "[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+|\\s++$"));

TEST(RegexTest, OnigurumasDialect) {
  EXPECT_EQ(matches(Regex("\\p{N}{1,3}+"), "a12345b"), (Strings{"12345"}));
  EXPECT_EQ(matches(Regex("\\p{N}{1,3}+", RegexSyntax::perl), "a12345b"), (Strings{"123", "45"}));
  EXPECT_EQ(matches(Regex("^a"), "aa\na"), (Strings{"a", "a"}));
  EXPECT_EQ(matches(Regex("^a", RegexSyntax::perl), "aa\na"), (Strings{"a"}));
  EXPECT_EQ(matches(Regex("[a-z&&[^b]]+"), "xabcx"), (Strings{"xa", "cx"}));
  EXPECT_EQ(matches(Regex("[a[bc]]+"), "xabcx"), (Strings{"abc"}));
  EXPECT_EQ(matches(Regex("a{,2}b"), "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches(Regex("(?i:'s)"), "'\xc5\xbf 'S"), (Strings{"'\xc5\xbf", "'S"}));
  EXPECT_EQ(matches(Regex("[\\p{Han}]+"),
                    "a\xe6\xbc\xa2\xe5\xad\x97"
                    "b"),
            (Strings{"\xe6\xbc\xa2\xe5\xad\x97"}));
  EXPECT_EQ(matches(Regex("a.c", true), "abc a.c"), (Strings{"a.c"}));
}

// Oniguruma's word characters: no joiners, and Latin-1 numbers only outside brackets. The second
// pattern of each pair is for PCRE.
TEST(RegexTest, WordCharactersOfBothDialects) {
  const std::string text = "a\xc2\xb2\xe2\x80\x8d_\xc2\xbc";  // a, superscript 2, joiner, _, 1/4
  for (const char* suffix : {"", "(?<!-)"}) {
    const auto cut = [&](const std::string& pattern, RegexSyntax syntax) {
      return matches(Regex(pattern + suffix, syntax), text);
    };
    EXPECT_EQ(cut("\\w+", RegexSyntax::oniguruma), (Strings{"a\xc2\xb2", "_\xc2\xbc"}));
    EXPECT_EQ(cut("\\W+", RegexSyntax::oniguruma), (Strings{"\xe2\x80\x8d"}));
    EXPECT_EQ(cut("[\\w]+", RegexSyntax::oniguruma), (Strings{"a", "_"}));
    EXPECT_EQ(cut("\\w+", RegexSyntax::perl), (Strings{"a", "\xe2\x80\x8d_"}));
    EXPECT_EQ(cut("[\\w]+", RegexSyntax::perl), (Strings{"a", "\xe2\x80\x8d_"}));
  }
}

TEST(RegexTest, WhatTheMatcherLacksGoesToPcre) {
  for (const char* pattern : {"(a)\\1", "(?<=b)a", "a+?", "\\ba", "[[:alpha:]]"}) {
    const Regex regex(pattern);
    EXPECT_FALSE(regex.is_program()) << pattern;
  }
  EXPECT_EQ(matches(Regex("(?<=b)a"), "aba"), (Strings{"a"}));
  // Unicode 16 letters, which PCRE2 does not know.
  EXPECT_EQ(matches(Regex("\\b\\p{L}+?x|(?<=!)\\p{L}+"), "!\xe1\xb2\x89\xe1\xb2\x8a"),
            (Strings{"\xe1\xb2\x89\xe1\xb2\x8a"}));
  EXPECT_EQ(matches(Regex("(?<=!)[^\\P{L}]+"), "!\xe1\xb2\x89-"), (Strings{"\xe1\xb2\x89"}));
  EXPECT_THROW(Regex("a(?<"), Error);
}

TEST(RegexTest, KnownPatternsAreLinear) {
  const size_t n = 300000;
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern, kO200k, kDeepSeek, kClip}) {
    const Regex regex(pattern);
    for (const char* unit : {"a", "A", " ", "\n", "'", "1", "\xe4\xb8\x80", " \n", ".", "Aa"}) {
      std::string text;
      while (text.size() < n) text += unit;
      const auto start = std::chrono::steady_clock::now();
      matches(regex, text + "x");
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      EXPECT_LT(time.count(), testing::kHangSeconds) << pattern << " on " << unit;
    }
  }
}

TEST(RegexTest, BacktrackingIsBounded) {
  RegexScratch scratch;
  Regex::Match match;
  for (const char* pattern : {"(?:a|aa)+[bc]", "(?:a+)+b", "(?:a*a)*b", "a*a*a*a*a*b"}) {
    const Regex regex(pattern);
    ASSERT_TRUE(regex.is_program()) << pattern;
    try {
      regex.find(std::string(5000, 'a'), 0, match, scratch);
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("backtracks too much"), std::string::npos);
    }
  }
  EXPECT_TRUE(Regex("(?:ab)*c").find(std::string(100000, 'a') + "c", 0, match, scratch));
}

TEST(PcreRegexTest, FindsGroups) {
  const PcreRegex regex("(a)?(b+)", RegexSyntax::perl);
  std::vector<Regex::Match> groups;
  ASSERT_TRUE(regex.find_groups("xabb b", 0, groups));
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].begin, 1u);
  EXPECT_EQ(groups[0].end, 4u);
  EXPECT_EQ(groups[1].end, 2u);
  EXPECT_EQ(groups[2].begin, 2u);
  ASSERT_TRUE(regex.find_groups("xabb b", 4, groups));
  EXPECT_EQ(groups[1].begin, std::string::npos);
  EXPECT_EQ(groups[2].begin, 5u);
  EXPECT_FALSE(regex.find_groups("xabb b", 6, groups));
}

TEST(WordCacheTest, GivesBackWhatWasPut) {
  WordCache cache;
  const auto get = [&](std::string_view word) {
    std::vector<int32_t> ids;
    if (!cache.find(word, ids)) ids = {-1};
    return ids;
  };
  for (size_t size = 0; size <= 40; ++size) {
    const std::string word(size, 'x');
    EXPECT_EQ(get(word), (std::vector<int32_t>{-1}));
    const std::vector<int32_t> ids(size % 5, static_cast<int32_t>(size));
    cache.put(word, ids);
    EXPECT_EQ(get(word), size <= 30 ? ids : (std::vector<int32_t>{-1})) << size;
  }
  EXPECT_EQ(get(std::string_view("xx\0", 3)), (std::vector<int32_t>{-1}));
  cache.put("many", std::vector<int32_t>(8, 1));  // too many to keep
  EXPECT_EQ(get("many"), (std::vector<int32_t>{-1}));
  for (int i = 0; i < 300000; ++i) cache.put(std::to_string(i), std::vector<int32_t>{i});
  int kept = 0;
  for (int i = 0; i < 300000; ++i) {
    const std::vector<int32_t> ids = get(std::to_string(i));
    if (ids[0] >= 0) {
      ASSERT_EQ(ids, std::vector<int32_t>{i});
      ++kept;
    }
  }
  EXPECT_GT(kept, 30000);
}

TEST(WordCacheTest, WordsThatWaitAreTakenInOrder) {
  WordCache cache;
  std::vector<int32_t> ids;
  EXPECT_FALSE(cache.keep(std::string(16, 'x')));  // too long to wait
  size_t waiting = 0;
  for (; cache.keep(std::to_string(waiting % 3)); ++waiting) {
  }
  int asked = 0;
  const auto encode = [&](std::string_view word, std::vector<int32_t>& out) {
    out.push_back(word[0] - '0');
    ++asked;
  };
  cache.take(ids, encode);
  ASSERT_EQ(ids.size(), waiting);
  for (size_t i = 0; i < waiting; ++i) EXPECT_EQ(ids[i], static_cast<int32_t>(i % 3));
  EXPECT_EQ(asked, 3);
  cache.take(ids, encode);
  EXPECT_EQ(ids.size(), waiting);
}

}  // namespace
}  // namespace megatron::tokenizers
