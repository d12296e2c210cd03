#include "tokenizers/tik_token/tik_token.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "tokenizers/base64.h"
#include "tokenizers/tik_token/tik_token_file.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {
namespace {

using Ids = std::vector<int32_t>;

const std::vector<std::string> kWords = {"ab", "bc", "abc", "aa", "aaa", " a", "<s>"};

std::string lines_of(const std::vector<std::string>& words) {
  std::string lines;
  int64_t rank = 0;
  for (; rank < 256; ++rank)
    lines += to_base64(std::string(1, static_cast<char>(rank))) + " " + std::to_string(rank) + "\n";
  for (const std::string& word : words)
    lines += to_base64(word) + " " + std::to_string(rank++) + "\n";
  return lines;
}

std::string list_of(const std::vector<std::string>& words) {
  Json::Array list;
  const auto add = [&](const std::string& token) {
    list.push_back(Json::Object{{"rank", static_cast<int64_t>(list.size())},
                                {"token_bytes", to_base64(token)},
                                {"token_str", "x"}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& word : words) add(word);
  return Json(list).dump();
}

Json settings() {
  return Json::Object{{"pat_str", R"( ?\p{L}+|\s+|[^\s\p{L}]+)"},
                      {"special_tokens", Json::Object{{"<end>", 300}, {"<end>!", 301}}}};
}

Ids ids(const Codec& codec, std::string_view text, bool find_special = true) {
  Ids ids;
  codec.encode(text, {.find_special_tokens = find_special}, ids, nullptr);
  return ids;
}
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Base64, ThereAndBack) {
  for (const std::string text : {"", "f", "fo", "foo", "foob", "fooba", "foobar"}) {
    std::string bytes;
    EXPECT_TRUE(append_base64(to_base64(text), bytes));
    EXPECT_EQ(bytes, text);
  }
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  std::string bytes;
  for (const char* bad : {"Zg", "Zg=", "Z===", "Zg==Zg==", "Z*==", "===="})
    EXPECT_FALSE(append_base64(bad, bytes)) << bad;
}

TEST(TikToken, JoinsByTheRankOfTheResult) {
  const auto codec = make_tik_token(lines_of(kWords), settings());
  EXPECT_EQ(ids(*codec, "abc"), (Ids{258}));
  EXPECT_EQ(ids(*codec, "abcd"), (Ids{258, 'd'}));
  EXPECT_EQ(ids(*codec, "bab"), (Ids{'b', 256}));
  EXPECT_EQ(ids(*codec, "aaaaa"), (Ids{259, 260}));
  EXPECT_EQ(ids(*codec, "b a"), (Ids{'b', 261}));
}

// "xyx" can be merged as xy+x or as x+yx. Both have the same rank, so that the position decides.
// The ids are tiktoken's.
TEST(TikToken, JoinsTheLeftmostOfEquals) {
  const auto codec = make_tik_token(lines_of({"yx", "xy", "yxyx", "xyxy", "xyx"}), settings());
  EXPECT_EQ(ids(*codec, "xyxyx"), (Ids{'x', 258}));
  EXPECT_EQ(ids(*codec, "xyxyxyx"), (Ids{'x', 258, 256}));
  EXPECT_EQ(ids(*codec, "zxyxy"), (Ids{'z', 259}));
}

TEST(TikToken, TakesAWholePieceFirst) {
  // No merges lead to "xyz", but it is a token.
  std::vector<std::string> words = kWords;
  words.push_back("xyz");
  const auto codec = make_tik_token(lines_of(words), settings());
  EXPECT_EQ(ids(*codec, "xyz"), (Ids{263}));
  EXPECT_EQ(ids(*codec, "xyzx"), (Ids{'x', 'y', 'z', 'x'}));
}

TEST(TikToken, FindsSpecialTokensOrNot) {
  const auto codec = make_tik_token(lines_of(kWords), settings());
  EXPECT_EQ(ids(*codec, "ab<end>ab<end>!"), (Ids{256, 300, 256, 301}));
  EXPECT_EQ(ids(*codec, "<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(ids(*codec, "<end>", false), (Ids{'<', 'e', 'n', 'd', '>'}));
  EXPECT_EQ(codec->decode(Ids{256, 300, 256, 299}, false), "ab<end>ab");
  EXPECT_EQ(codec->decode(Ids{256, 300, 256}, true), "abab");
  EXPECT_TRUE(codec->is_special(300));
  EXPECT_FALSE(codec->contains(299));
  EXPECT_EQ(codec->size(), 302);
}

TEST(TikToken, ReadsWhatItWrites) {
  TikTokenOptions options;
  options.special_count = 10;
  const auto codec = make_tik_token_list(list_of(kWords), options);
  const auto files = codec->files();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "tokenizer.tiktoken");
  EXPECT_EQ(files[1].name, "tiktoken_config.json");
  const auto again = make_tik_token(files[0].content, Json::parse(files[1].content));
  EXPECT_EQ(again->size(), codec->size());
  EXPECT_EQ(again->role("eos"), codec->role("eos"));
  const std::string text = "abc <s>a b\xff</s>aaaa <SPECIAL_8> bc";
  EXPECT_EQ(ids(*again, text), ids(*codec, text));
}

TEST(TikToken, MegatronsListBeginsWithSpecialTokens) {
  const auto codec = make_tik_token_list(list_of(kWords), {});
  EXPECT_EQ(codec->size(), 1000 + 263);
  EXPECT_EQ(ids(*codec, "abc</s>"), (Ids{1258, 2}));
  EXPECT_EQ(ids(*codec, "abc</s>", false).size(), 5u);
  EXPECT_EQ(codec->find("<unk>"), 0);
  EXPECT_EQ(codec->find("<sep>"), 6);
  EXPECT_EQ(codec->find("<SPECIAL_7>"), 7);
  EXPECT_EQ(codec->find("<SPECIAL_999>"), 999);
  EXPECT_EQ(codec->role("bos"), 1);
  EXPECT_EQ(codec->role("eos"), 2);
  EXPECT_EQ(codec->role("pad"), 4);
  EXPECT_EQ(codec->decode(Ids{1258, 2, 1097}, true), "abca");
  TikTokenOptions few;
  few.special_count = 8;
  few.vocabulary_size = 8 + 257;  // all words but one are cut off
  few.special_tokens.push_back("<mine>");
  few.pattern = "v1";
  const auto small = make_tik_token_list(list_of(kWords), few);
  EXPECT_EQ(small->size(), 265);
  EXPECT_EQ(ids(*small, "abc<mine>"), (Ids{264, 8 + 'c', 7}));
}

TEST(TikToken, NamesWhatIsWrong) {
  const auto list = [](const std::string& json, const TikTokenOptions& options = {}) {
    return error_of([&] { make_tik_token_list(json, options); });
  };
  const auto lines = [](const std::string& text, const Json& config = settings()) {
    return error_of([&] { make_tik_token(text, config); });
  };
  const std::string good = lines_of(kWords);
  EXPECT_EQ(lines(good + "YWI= x\n"), "line 264: 'YWI= x' is not base64, a space and a number");
  EXPECT_EQ(lines(good + "YWI* 263\n"), "line 264: 'YWI*' is not base64");
  EXPECT_EQ(lines(good + " 263\n"), "line 264: a token has 0 bytes; it must have 1 to 1024");
  EXPECT_EQ(lines(good + "YWI= 263\n"),
            "line 264: duplicate token 'YWI=', which already has id 256");
  EXPECT_EQ(lines(good + "eHg= 256\n"), "line 264: duplicate id 256");
  EXPECT_EQ(lines(good + "eHg= 99999999\n"), "line 264: the id is 99999999; ids are 0 to 4194303");
  EXPECT_EQ(lines("YQ== 0\n"),
            "there is no token for the byte <0x00>; each of the 256 bytes "
            "needs one");
  EXPECT_NE(lines(good, Json::Object{}).find("pat_str"), std::string::npos);
  EXPECT_NE(lines(good, Json::Object{{"pat_str", "("}}).find("regular expression"),
            std::string::npos);
  EXPECT_EQ(
      lines(good, Json::Object{{"pat_str", "."}, {"special_tokens", Json::Object{{"<e>", 5}}}}),
      "id 5 belongs to the special token '<e>' and to a token of the file");
  EXPECT_NE(list("[{\"rank\":0}]").find("entry 0 is not {\"rank\""), std::string::npos);
  EXPECT_EQ(list("[{\"rank\":1,\"token_bytes\":\"AA==\",\"token_str\":\"\"}]"),
            "entry 0 has the rank 1; ranks must count up from 0");
  EXPECT_EQ(list("[{\"rank\":0,\"token_bytes\":\"YQ==\",\"token_str\":\"\"}]"),
            "entry 0 is not the byte 0; the first 256 are the bytes in order");
  EXPECT_NE(list("[", {}), "no error");
  TikTokenOptions options;
  options.pattern = "v3";
  EXPECT_EQ(list(list_of({}), options), "--tiktoken-pattern is 'v3'; it can be v1 or v2");
  options = {};
  options.special_count = 3;
  EXPECT_EQ(list(list_of({}), options),
            "there are 7 special tokens but only room for 3 (--tiktoken-num-special-tokens)");
  options = {};
  options.special_tokens.pop_back();
  EXPECT_EQ(list(list_of({}), options), "the special tokens do not include '<sep>'");
  options = {};
  options.vocabulary_size = 1100;
  EXPECT_NE(list(list_of({}), options).find("has no room for 1000 special tokens"),
            std::string::npos);
}

// Words with more bytes than the word cache and the short merge accept.
TEST(TikToken, LongPieces) {
  const auto codec = make_tik_token(lines_of(kWords), settings());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "abc";
  EXPECT_EQ(ids(*codec, text), Ids(2000, 258));
  EXPECT_EQ(codec->decode(ids(*codec, text + "\xe4\xb8\xad"), false), text + "\xe4\xb8\xad");
}

}  // namespace
}  // namespace megatron::tokenizers
