// Texts of encoders keep the tokenizer's own tokens when they are cut.
#include "tokenizers/text_ends.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tokenizers/plain_codecs.h"
#include "word_vocabulary.h"

namespace megatron::tokenizers {
namespace {

using Ids = std::vector<int32_t>;

TEST(TextEnds, AreTheTokensAroundAText) {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("text_ends_" + std::to_string(::getpid()));
  testing::write_word_vocabulary(folder, 12);
  const Tokenizer bert = Tokenizer::load(folder);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(bert.encode("w7 w8", true), (Ids{2, 7, 8, 3}));
  const TextEnds ends = text_ends(bert);
  EXPECT_EQ(ends.first, 2);
  EXPECT_EQ(ends.last, 3);
  const TextEnds of_bytes = text_ends(Tokenizer(make_byte_codec(256)));
  EXPECT_FALSE(of_bytes.first.has_value());
  EXPECT_FALSE(of_bytes.last.has_value());
}

Ids cut(Ids ids, int64_t length, bool keeps_start, const TextEnds& ends) {
  cut_text(ids, length, keeps_start, ends);
  return ids;
}

TEST(TextEnds, StayWhenATextIsCut) {
  const TextEnds ends{.first = 2, .last = 3};
  const Ids text = {2, 7, 8, 9, 10, 3};
  EXPECT_EQ(cut(text, 6, true, ends), text);
  EXPECT_EQ(cut(text, 4, true, ends), (Ids{2, 7, 8, 3}));
  EXPECT_EQ(cut(text, 4, false, ends), (Ids{2, 9, 10, 3}));
  EXPECT_EQ(cut(text, 4, true, {}), (Ids{2, 7, 8, 9}));
  EXPECT_EQ(cut(text, 4, false, {}), (Ids{8, 9, 10, 3}));
  EXPECT_EQ(cut(text, 1, true, ends), Ids{2});
  EXPECT_EQ(cut({7, 8, 9}, 2, true, ends), (Ids{7, 8}));  // without the tokens: as it is
}

TEST(TextEnds, PairsLoseTheirLongerTextFirst) {
  const auto lengths = [](size_t first, size_t second, int64_t length) {
    Ids one(first), other(second);
    cut_pair(one, other, length, true);
    return std::pair(one.size(), other.size());
  };
  // As tokenizers 0.23 has it with longest_first.
  EXPECT_EQ(lengths(3, 5, 8), std::pair(3ul, 5ul));
  EXPECT_EQ(lengths(3, 9, 8), std::pair(3ul, 5ul));
  EXPECT_EQ(lengths(9, 3, 8), std::pair(5ul, 3ul));
  EXPECT_EQ(lengths(9, 8, 7), std::pair(4ul, 3ul));
  EXPECT_EQ(lengths(8, 8, 7), std::pair(3ul, 4ul));
  EXPECT_EQ(lengths(0, 8, 7), std::pair(0ul, 7ul));
  Ids one = {1, 2, 3}, other = {4, 5};
  cut_pair(one, other, 3, false);
  EXPECT_EQ(one, (Ids{2, 3}));
  EXPECT_EQ(other, Ids{5});
}

}  // namespace
}  // namespace megatron::tokenizers
