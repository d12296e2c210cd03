#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "constraint_cases.h"
#include "inference/constraint/grammar.h"

namespace megatron::inference {
namespace {

std::string error_of(std::string_view pattern) {
  try {
    Grammar::from_regex(pattern);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

void expect_pattern_error(std::string_view pattern, std::string_view part) {
  const std::string error = error_of(pattern);
  EXPECT_NE(error.find(part), std::string::npos) << error;
}

// Matches a whole text with PCRE2.
class Reference {
 public:
  explicit Reference(const std::string& pattern) {
    int error = 0;
    size_t offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr);
    data_ = code_ ? pcre2_match_data_create_from_pattern(code_, nullptr) : nullptr;
  }
  ~Reference() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  bool compiled() const { return code_ != nullptr; }
  bool matches(const std::string& text) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_,
                       nullptr) >= 0;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* data_;
};

const std::vector<std::string> kAlphabet = {"a", "b", "c",  "1",  "2", "_", "-",
                                            "é", "ß", "漢", "😀", " ", "\t"};

class RandomPattern {
 public:
  explicit RandomPattern(std::mt19937_64& random) : random_(random) {}

  std::string pattern(int depth) {
    std::string text = sequence(depth);
    for (uint64_t more = random_() % 3; more > 1; --more) text += "|" + sequence(depth);
    return text;
  }

 private:
  std::string sequence(int depth) {
    std::string text;
    for (uint64_t n = random_() % 4; n > 0; --n) text += repeated(depth);
    return text;
  }
  std::string repeated(int depth) {
    static const std::vector<std::string> quantifiers = {"",    "",     "",      "*",     "+", "?",
                                                         "{2}", "{1,}", "{0,3}", "{2,4}", "*?"};
    return atom(depth) + one_of(quantifiers);
  }
  std::string atom(int depth) {
    static const std::vector<std::string> sets = {
        ".",      "\\d",    "\\w",     "\\D",    "\\W",       "\\s",     "\\S",       "[a-c]",
        "[^ab1]", "[é-漢]", "[\\d_-]", "[^\\w]", "[\\]\\-é]", "\\x{e9}", "[\\x62-ÿ]", "\\-"};
    const uint64_t kind = random_() % 8;
    if (kind < 2 && depth > 0) return (random_() % 2 == 0 ? "(" : "(?:") + pattern(depth - 1) + ")";
    return one_of(kind < 4 ? sets : kAlphabet);
  }
  const std::string& one_of(const std::vector<std::string>& list) {
    return list[random_() % list.size()];
  }

  std::mt19937_64& random_;
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Translates the character classes of ECMA-262 for PCRE2.
std::string for_pcre2(std::string pattern) {
  const std::string space =
      "\\x{9}-\\x{d} "
      "\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
      "\\x{feff}]";
  pattern = replaced(pattern, ".", "[^\n\r\\x{2028}\\x{2029}]");
  return replaced(replaced(pattern, "\\s", "[" + space), "\\S", "[^" + space);
}

TEST(ConstraintPattern, AgreesWithPcre2) {
  std::mt19937_64 random(1);
  RandomPattern patterns(random);
  int compared = 0, matched = 0, drawn = 0;
  for (int round = 0; round < 150; ++round) {
    const std::string pattern = patterns.pattern(3);
    const Reference reference(for_pcre2(pattern));
    ASSERT_TRUE(reference.compiled()) << pattern;
    const auto grammar = Grammar::from_regex(replaced(pattern, "\\x{", "\\u{"));
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (uint64_t n = random() % 7; n > 0; --n) text += kAlphabet[random() % kAlphabet.size()];
      const bool wanted = reference.matches(text);
      EXPECT_EQ(reads(grammar, text) == 1, wanted) << pattern << " on '" << text << "'";
      ++compared;
      matched += wanted;
    }
    for (int i = 0; i < 3; ++i) {
      const auto ids = RandomText(byte_tokens(), random).draw(Matcher(grammar, byte_tokens()), 8);
      if (!ids) continue;  // it has only long texts
      const std::string text = text_of(*byte_tokens(), *ids);
      EXPECT_TRUE(reference.matches(text)) << pattern << " on '" << text << "'";
      ++drawn;
    }
  }
  EXPECT_GT(drawn, 200);
  EXPECT_GT(matched, compared / 20);
}

TEST(ConstraintPattern, ReadsEscapes) {
  const auto has = [](std::string_view pattern, std::string_view text) {
    return reads(Grammar::from_regex(pattern), text) == 1;
  };
  EXPECT_TRUE(has("\\u0041\\x42\\u{1F600}\\ud83d\\ude00\\cJ\\t\\n\\v\\f\\r\\/",
                  "AB\U0001F600\U0001F600\n\t\n\v\f\r/"));
  EXPECT_TRUE(has("(?<year>\\d{4})", "2024"));
  EXPECT_TRUE(has("a{x}{,2}{2,x", "a{x}{,2}{2,x"));  // these are not counts
  EXPECT_TRUE(has("\\s", "\xc2\xa0"));
  EXPECT_FALSE(has("\\d", "\xd9\xa1"));  // U+0661 is not an ASCII digit
  EXPECT_FALSE(has(".", "\n"));
  EXPECT_TRUE(has("[\\b]", "\b"));
  EXPECT_TRUE(has("\\p{L}\\P{Lu}[\\p{Nd}x]", "漢é\xd9\xa1"));
  EXPECT_FALSE(has("\\P{Lu}", "É"));
  EXPECT_TRUE(has("", ""));
}

TEST(ConstraintPattern, TakesAnchorsAtTheEnds) {
  for (const char* pattern : {"^ab$", "(^ab$)", "^(ab)$", "(?:^(?:ab))$", "^^ab$$"}) {
    EXPECT_EQ(reads(Grammar::from_regex(pattern), "ab"), 1) << pattern;
    EXPECT_EQ(reads(Grammar::from_regex(pattern), "abb"), -1) << pattern;
  }
  EXPECT_EQ(reads(Grammar::from_regex("^a|b$"), "b"), 1);
  expect_pattern_error("a^b", "^ and $ are supported only at the ends");
  expect_pattern_error("(^a)b", "^ and $ are supported only at the ends");
  expect_pattern_error("(a$)*", "^ and $ are supported only at the ends");
}

TEST(ConstraintPattern, NeverGivesHalfACharacterOrASurrogate) {
  std::mt19937_64 random(2);
  const auto any = Grammar::from_regex("[^a]{3}");
  for (int i = 0; i < 200; ++i) {
    const auto ids = RandomText(byte_tokens(), random).draw(Matcher(any, byte_tokens()), 20);
    ASSERT_TRUE(ids);
    EXPECT_NO_THROW(Json(text_of(*byte_tokens(), *ids)).dump());  // throws if it is not UTF-8
  }
  EXPECT_EQ(reads(any, "\xed\xa0"), -1);
  EXPECT_EQ(reads(any, "\xf4\x90"), -1);
  EXPECT_EQ(reads(any, "\xc0"), -1);
}

TEST(ConstraintPattern, RefusesWhatItDoesNotSupport) {
  expect_pattern_error("(a)\\1", "the pattern '(a)\\1' at byte 5: back-references");
  expect_pattern_error("(?<x>a)\\k<x>", "back-references");
  for (const char* pattern : {"(?=a)", "(?!a)", "(?<=a)", "(?<!a)"})
    expect_pattern_error(pattern, "look-ahead and look-behind");
  expect_pattern_error("\\bword", "word boundaries");
  expect_pattern_error("(?i)a", "flags are not supported");
  expect_pattern_error("a{1001}", "counts go up to 1000");
  expect_pattern_error("a{3,2}", "maximum below its minimum");
  expect_pattern_error("a**", "nothing to repeat");
  expect_pattern_error("|*", "nothing to repeat");
  expect_pattern_error("(a", "a group is not closed");
  expect_pattern_error("a)", "')' without '('");
  expect_pattern_error("[a", "ends too early");
  expect_pattern_error("[]", "has no characters");
  expect_pattern_error("[z-a]", "is below its beginning");
  expect_pattern_error("[a-\\d]", "cannot end with a class");
  expect_pattern_error("[[:alpha:]]", "\\p{..}");
  expect_pattern_error("\\p{Nothing}", "no property 'Nothing'");
  expect_pattern_error("\\ud800", "no partner");
  expect_pattern_error("\\u{110000}", "up to \\u{10FFFF}");
  expect_pattern_error("\\q", "unknown escape");
  expect_pattern_error("\\", "ends too early");
  expect_pattern_error("a\xff", "UTF-8");
  expect_pattern_error("[^\\s\\S]", "no text matches");
}

TEST(ConstraintPattern, EndsOnHostilePatterns) {
  expect_pattern_error(std::string(5'000, '(') + std::string(5'000, ')'), "nested deeper than 100");
  expect_pattern_error(std::string(10'001, '('), "it has 10001 bytes; the limit is 10000");
  expect_pattern_error("((((a{1000}){1000}){1000}){1000})", "needs more than 400000 states");
  // If made deterministic in advance, it would have 2^30 states.
  const auto grammar = Grammar::from_regex("[ab]*a[ab]{30}");
  EXPECT_EQ(reads(grammar, "ba" + std::string(30, 'b')), 1);
  EXPECT_EQ(reads(Grammar::from_regex("(((a*)*)*)*b"), std::string(200, 'a') + "b"), 1);
}

}  // namespace
}  // namespace megatron::inference
