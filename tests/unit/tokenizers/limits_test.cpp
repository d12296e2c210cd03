// Hostile tokenizer files: each soon gives an error that names its part.
#include "tokenizers/limits.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tokenizers/codec.h"
#include "tokenizers/definition.h"

namespace megatron::tokenizers {
namespace {

using Ids = std::vector<int32_t>;

std::string repeated(const std::string& text, int times, const std::string& between = "") {
  std::string all;
  for (int i = 0; i < times; ++i) all += (i > 0 ? between : "") + text;
  return all;
}

const std::string kModel =
    R"({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
"max_input_chars_per_word": 1000000000, "vocab": {"?": 0, "a": 1, "##a": 2, "##aa": 3, "b": 4}})";

struct Parts {
  std::string normalizer = "null", pre_tokenizer = "null", post_processor = "null",
              decoder = "null", added_tokens = "[]", model = kModel;
};

std::unique_ptr<Codec> codec_of(const Parts& p) {
  return make_pipeline(parse_definition(
      R"({"version": "1.0", "added_tokens": )" + p.added_tokens + R"(, "normalizer": )" +
      p.normalizer + R"(, "pre_tokenizer": )" + p.pre_tokenizer + R"(, "post_processor": )" +
      p.post_processor + R"(, "decoder": )" + p.decoder + R"(, "model": )" + p.model + "}"));
}

Ids encode(const Parts& parts, const std::string& text) {
  Ids ids;
  codec_of(parts)->encode(text, {}, ids, nullptr);
  return ids;
}

template <class F>
void expect_error(F&& f, const std::string& words) {
  try {
    f();
    ADD_FAILURE() << "no error with: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}
void expect_refused(const Parts& parts, const std::string& text, const std::string& words) {
  expect_error([&] { encode(parts, text); }, words);
}

std::string replace(const std::string& to) {
  return R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")" + to + "\"}";
}

TEST(TokenizerLimits, NormalizersThatGrow) {
  const std::string steps = repeated(replace(repeated("a", 16)), 12, ", ");
  expect_refused({.normalizer = R"({"type": "Sequence", "normalizers": [)" + steps + "]}"}, "aaaa",
                 "a Sequence of normalizers produces 262144 bytes or more from a text of 4 bytes");
  expect_refused({.normalizer = replace(std::string(100'000, 'b'))}, "aa",
                 "the normalizer Replace produces 100000 bytes");
  // Each stretch between added tokens grows slightly.
  expect_refused(
      {.normalizer = R"({"type": "Prepend", "prepend": ")" + std::string(1000, 'b') + "\"}",
       .added_tokens = R"([{"id": 5, "content": "|", "special": true}])"},
      repeated("a|", 200), "the normalizer produces");
  EXPECT_EQ(encode({.normalizer = replace("aaa")}, "a"), (Ids{1, 3}));
}

TEST(TokenizerLimits, DecodersThatGrow) {
  const std::string steps = repeated(replace(repeated("a", 16)), 12, ", ");
  const auto codec = codec_of({.decoder = R"({"type": "Sequence", "decoders": [)" + steps + "]}"});
  expect_error([&] { codec->decode(Ids{1, 1}, false); }, "a Sequence of decoders produces");
  std::string bytes;
  expect_error([&] { codec->append_bytes(1, bytes); }, "a Sequence of decoders produces");
  const auto one = codec_of({.decoder = replace(std::string(100'000, 'b'))});
  expect_error([&] { one->decode(Ids{1}, false); }, "the decoder's Replace produces 100000 bytes");
}

TEST(TokenizerLimits, ManyComponents) {
  const std::string open = R"({"type": "Sequence", "normalizers": [)";
  expect_refused({.normalizer = repeated(open, 40) + repeated("]}", 40)}, "a",
                 "normalizer: Sequences are nested more than 16 levels deep");
  expect_refused({.normalizer = open + repeated(R"({"type": "NFC"})", 65, ",") + "]}"}, "a",
                 "normalizer: there are more than 64 components");
  const std::string byte_level = R"({"type": "ByteLevel", "add_prefix_space": false})";
  expect_refused({.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [)" +
                                   repeated(byte_level, 30, ",") + "]}"},
                 "a",
                 "there are 30 ByteLevel steps, each of which except the last doubles the text");
}

TEST(TokenizerLimits, TokensRoundAText) {
  const std::string ids = repeated("1", 2000, ","), piece = R"({"SpecialToken": {"id": "s"}})";
  expect_refused({.post_processor = R"({"type": "TemplateProcessing", "single": [)" +
                                    repeated(piece, 2000, ",") +
                                    R"(, {"Sequence": {"id": "A"}}], "special_tokens": {"s":
                                    {"ids": [)" +
                                    ids + "]}}}"},
                 "a", "post_processor: more than 4096 tokens are put around a text");
}

TEST(TokenizerLimits, LongTokensAndWords) {
  EXPECT_EQ(encode({}, std::string(200'001, 'a')).size(), 100'001u);
  const std::string token(5000, 'a');
  const std::string model = R"({"type": "WordPiece", "unk_token": "?", "vocab": {"?": 0, "a": 1,
      "##a": 2, ")" + token +
                            R"(b": 3, "##)" + token +
                            R"(b": 4}, "max_input_chars_per_word": 1000000})";
  expect_refused({.model = model}, std::string(50'000, 'a'),
                 "WordPiece: a word of 50000 bytes needs too many steps; lower "
                 "max_input_chars_per_word, which is 1000000");
  expect_refused({.added_tokens = R"([{"id": 5, "content": ")" + std::string(9000, 'x') + "\"}]"},
                 "a", "has 9000 bytes; the limit is 8192");
}

TEST(TokenizerLimits, WhiteSpaceOfAddedTokensIsReadOnce) {
  const Parts parts{.added_tokens = R"([{"id": 5, "content": " ", "rstrip": true, "lstrip": true,
                                         "special": true}])"};
  EXPECT_EQ(encode(parts, "a" + std::string(300'000, ' ') + "b").front(), 1);
}

TEST(TokenizerLimits, RegularExpressions) {
  const auto split = [](const std::string& regex) {
    return Parts{.pre_tokenizer =
                     R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")" + regex +
                     "\"}}"};
  };
  expect_refused(split(R"((?=(a|aa)+$)\\1b|(a+)+c)"), std::string(60, 'a') + "b",
                 "it backtracks too much");
  EXPECT_EQ(encode(split("x*"), "aa"), (Ids{1, 1}));  // matches the empty string everywhere
}

}  // namespace
}  // namespace megatron::tokenizers
