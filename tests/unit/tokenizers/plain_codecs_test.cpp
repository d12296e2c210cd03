#include "tokenizers/plain_codecs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {
namespace {

using Ids = std::vector<int32_t>;

std::string refused(const Tokenizer& tokenizer, std::string_view text) {
  try {
    tokenizer.encode(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(NullCodec, ReadsAndWritesIds) {
  const Tokenizer tokenizer(make_null_codec(1000, 999));
  EXPECT_EQ(tokenizer.encode(" 1 2\n\t30  999 "), (Ids{1, 2, 30, 999}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{1, 2, 30, 5000}), "1 2 30");
  EXPECT_EQ(tokenizer.eod(), 999);
  EXPECT_EQ(tokenizer.pad(), std::nullopt);
  EXPECT_EQ(tokenizer.vocabulary_size(), 1000);
  DecodeStream stream(tokenizer);
  EXPECT_EQ(stream.push(1), "1");
  EXPECT_EQ(stream.push(20), " 20");
  EXPECT_EQ(stream.finish(), "");
}

TEST(NullCodec, NamesWhatIsNoId) {
  const Tokenizer tokenizer(make_null_codec(1000, 7));
  EXPECT_EQ(refused(tokenizer, "1 1000"),
            "'1000' at offset 2 is not a token id in [0, 1000); NullTokenizer reads ids "
            "separated by spaces");
  for (const char* bad : {"-1", "+1", "1.5", "x", "99999999999999", "1\xff", "-0"})
    EXPECT_NE(refused(tokenizer, bad).find("is not a token id"), std::string::npos) << bad;
  EXPECT_THROW(make_null_codec(0, 0), Error);
  EXPECT_THROW(make_null_codec(10, 10), Error);
  EXPECT_THROW(make_null_codec(int64_t{1} << 31, 0), Error);
}

TEST(ByteCodec, IdsAreBytes) {
  const Tokenizer tokenizer(make_byte_codec(512));
  EXPECT_EQ(tokenizer.encode("a\xc3\xa9\xff"), (Ids{'a', 0xc3, 0xa9, 0xff}));
  EXPECT_EQ(tokenizer.decode(Ids{'a', 0xc3, 0xa9, 0xff, 300}), "a\xc3\xa9\xef\xbf\xbd");
  EXPECT_EQ(tokenizer.eod(), 0);
  EXPECT_EQ(tokenizer.vocabulary_size(), 512);
  DecodeStream stream(tokenizer);
  EXPECT_EQ(stream.push(0xc3), "");
  EXPECT_EQ(stream.push(0xa9), "\xc3\xa9");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_THROW(make_byte_codec(255), Error);
}

}  // namespace
}  // namespace megatron::tokenizers
