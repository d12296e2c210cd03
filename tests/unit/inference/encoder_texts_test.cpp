#include "inference/encoder_texts.h"

#include <gtest/gtest.h>

namespace megatron::inference {
namespace {

class EncoderTextsTest : public ::testing::Test {
 protected:
  std::shared_ptr<EncoderText> hold(std::vector<int32_t> prompt) {
    return texts_.hold(Request{.prompt = std::move(prompt)});
  }

  EncoderTexts texts_{{.block_size = 4, .windows = {0}, .pages = {5}, .prefix_caching = false}};
};

TEST_F(EncoderTextsTest, EqualPromptsAreOneTextWhileOneIsHeld) {
  const auto other = hold({1, 2});
  auto first = hold({1, 2, 3});
  const uint64_t number = first->number;
  EXPECT_NE(number, other->number);
  first->read = true;
  auto second = hold({1, 2, 3});
  EXPECT_EQ(first, second);
  EXPECT_EQ(second->unread(), 0);
  first.reset();
  EXPECT_EQ(hold({1, 2, 3}), second);
  second.reset();
  const auto again = hold({1, 2, 3});
  EXPECT_NE(again->number, number);
  EXPECT_EQ(again->unread(), 3);
}

TEST_F(EncoderTextsTest, PagesAreFreeWithTheLastHolder) {
  auto first = hold({1, 2, 3, 4, 5}), same = hold({1, 2, 3, 4, 5});
  EXPECT_TRUE(texts_.reserve(*first));
  EXPECT_TRUE(texts_.reserve(*same));
  EXPECT_EQ(texts_.used(), 2);
  const auto large = hold(std::vector<int32_t>(16, 7));
  EXPECT_FALSE(texts_.has_room(*large));
  EXPECT_FALSE(texts_.reserve(*large));
  EXPECT_TRUE(large->blocks.pages.at(0).empty());
  first.reset();
  EXPECT_EQ(texts_.used(), 2);
  same.reset();
  EXPECT_EQ(texts_.used(), 0);
  EXPECT_TRUE(texts_.has_room(*large));
  EXPECT_TRUE(texts_.reserve(*large));
  EXPECT_EQ(texts_.used(), 4);
  EXPECT_EQ(texts_.pages(), 5);
}

TEST_F(EncoderTextsTest, AreReadAgainWithOtherWeights) {
  const auto text = hold({1, 2});
  text->read = true;
  texts_.forget();
  EXPECT_EQ(text->unread(), 2);
}

}  // namespace
}  // namespace megatron::inference
