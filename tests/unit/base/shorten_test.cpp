#include "base/shorten.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(Shorten, ShortMessagesStay) {
  EXPECT_EQ(shortened("", 100), "");
  EXPECT_EQ(shortened("--lr is 3; at most 1", 100), "--lr is 3; at most 1");
  const std::string lines = std::string(90, 'a') + "\n" + std::string(90, 'b') + "\n";
  EXPECT_EQ(shortened(lines, 100), lines);
}

TEST(Shorten, ALongValueGivesWay) {
  const std::string text = shortened(
      "--load '/" + std::string(4000, 'x') + "/model' does not exist; name a folder", 480);
  EXPECT_LE(text.size(), 480u);
  EXPECT_GE(text.size(), 400u);
  EXPECT_TRUE(text.starts_with("--load '/xxx")) << text;
  EXPECT_TRUE(text.ends_with("xxx/model' does not exist; name a folder")) << text;
  EXPECT_NE(text.find("x...x"), text.npos) << text;
}

TEST(Shorten, SeveralLongValues) {
  const std::string path(300, 'p'), text = shortened(path + " and " + path + " differ", 200);
  EXPECT_LE(text.size(), 200u);
  EXPECT_TRUE(text.ends_with("p differ")) << text;
  EXPECT_NE(text.find("p and p"), text.npos) << text;
}

TEST(Shorten, AMessageOfShortWordsLosesItsMiddle) {
  std::string words = "the first";
  for (int i = 0; i < 500; ++i) words += " word";
  const std::string text = shortened(words + " last", 480);
  EXPECT_LE(text.size(), 480u);
  EXPECT_TRUE(text.starts_with("the first word")) << text;
  EXPECT_TRUE(text.ends_with("word last")) << text;
}

TEST(Shorten, SequencesOfUtf8StayWhole) {
  for (size_t extra = 0; extra < 4; ++extra) {
    std::string text(extra, 'a');
    for (int i = 0; i < 1000; ++i) text += "\xe4\xb8\x80";
    const std::string kept = shortened(text, 200);
    EXPECT_LE(kept.size(), 200u);
    EXPECT_EQ((kept.size() - extra - 3) % 3, 0u);
    EXPECT_EQ(kept.find("..."), kept.find('.'));
    EXPECT_NE(kept[kept.find("...") + 3] & 0xc0, 0x80);
  }
}

TEST(Shorten, CutShortKeepsTheBeginning) {
  EXPECT_EQ(cut_short("日日", 6), "日日");
  EXPECT_EQ(cut_short("日日日", 7), "日日...");
  EXPECT_EQ(cut_short("abcdef", 3, " …"), "abc …");
}

}  // namespace
}  // namespace megatron
