#include "data/sentence_splitter.h"

#include "support.h"

namespace megatron::data {
namespace {

std::vector<std::string> split(const std::string& text, bool keep_newlines = false) {
  std::vector<std::string_view> parts;
  SentenceSplitter("english", keep_newlines).split(text, parts);
  return {parts.begin(), parts.end()};
}

using Sentences = std::vector<std::string>;

TEST(SentenceSplitter, EndsAtMarks) {
  EXPECT_EQ(split("One. Two! Three? Four"), (Sentences{"One.", "Two!", "Three?", "Four"}));
  EXPECT_EQ(split("  One.\n Two.\t"), (Sentences{"One.", "Two."}));
  EXPECT_EQ(split("What?! No... Yes\u2026 Well."),
            (Sentences{"What?!", "No...", "Yes\u2026", "Well."}));
  EXPECT_EQ(split("no end at all"), (Sentences{"no end at all"}));
  EXPECT_EQ(split(""), Sentences{});
  EXPECT_EQ(split(" \n\t"), Sentences{});
}

TEST(SentenceSplitter, TakesClosingQuotesAndBrackets) {
  EXPECT_EQ(split("\"Go.\" He went. (It rained.) \u201cOh!\u201d They left."),
            (Sentences{"\"Go.\"", "He went.", "(It rained.)", "\u201cOh!\u201d", "They left."}));
}

TEST(SentenceSplitter, GoesOnBeforeASmallLetter) {
  EXPECT_EQ(split("\"Really?\" he said. Wait... what? Yes."),
            (Sentences{"\"Really?\" he said.", "Wait... what?", "Yes."}));
  EXPECT_EQ(split("Ende. \u00fcber. \u00c4ra."), (Sentences{"Ende. \u00fcber.", "\u00c4ra."}));
}

TEST(SentenceSplitter, KnowsAbbreviations) {
  for (const char* whole :
       {"Dr. Smith and Mrs. Jones met Prof. Brown.", "Tools, e.g. Perl, vs. Python.",
        "See Fig. 3 and No. 5 on p. 7.", "On Jan. 3 it rained.", "(cf. Smith)",
        "J. S. Bach and J. A. Smith met.", "The U.S. Senate met at 5 p.m. Tuesday.",
        "It costs 3.14 dollars at example.org today.", "1. First item"}) {
    EXPECT_EQ(split(whole), (Sentences{whole})) << whole;
  }
  EXPECT_EQ(split("He lives in the U.S. The capital is far."),
            (Sentences{"He lives in the U.S.", "The capital is far."}));
  EXPECT_EQ(split("Apples, pears etc. All were ripe."),
            (Sentences{"Apples, pears etc.", "All were ripe."}));
  EXPECT_EQ(split("I said no. Then I left in 1999. It rained."),
            (Sentences{"I said no.", "Then I left in 1999.", "It rained."}));
}

TEST(SentenceSplitter, EndsAtBlankLinesAndWideMarks) {
  EXPECT_EQ(split("A heading\n\nText of it\nin lines.\n \nMore"),
            (Sentences{"A heading", "Text of it\nin lines.", "More"}));
  EXPECT_EQ(split("\u4eca\u5929\u3002\u660e\u5929\uff01\u300c\u597d\u3002\u300d\u4ed6"),
            (Sentences{"\u4eca\u5929\u3002", "\u660e\u5929\uff01", "\u300c\u597d\u3002\u300d",
                       "\u4ed6"}));
}

TEST(SentenceSplitter, KeepsNewlinesSoThatNothingIsLost) {
  EXPECT_EQ(split(" One.\n\nTwo. \nThree", true), (Sentences{" One.\n\n", "Two. \n", "Three"}));
  const std::string alphabet[] = {".",  "!", " ",      "\n",     "Mr",  "A",   "b",   "3",
                                  "\"", ")", "\u3002", "\u00e9", "The", "e.g", "\xff"};
  uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    std::string text, joined;
    for (int i = 0; i < 60; ++i)
      text += alphabet[((state = state * 1664525u + 1013904223u) >> 16) % std::size(alphabet)];
    for (const std::string& part : split(text, true)) {
      EXPECT_FALSE(part.empty());
      joined += part;
    }
    EXPECT_EQ(joined, text.find_first_not_of(" \n") == text.npos ? "" : text);
    for (const std::string& part : split(text)) {
      EXPECT_FALSE(part.empty());
      EXPECT_EQ(part.find_first_of(" \n"), part.find_first_of(" \n", 1)) << "begins with a space";
    }
  }
}

TEST(SentenceSplitter, RefusesOtherLanguagesByName) {
  const std::string message = error_of([] { SentenceSplitter splitter("german"); });
  EXPECT_NE(message.find("german"), std::string::npos);
  EXPECT_NE(message.find("english"), std::string::npos);
}

}  // namespace
}  // namespace megatron::data
