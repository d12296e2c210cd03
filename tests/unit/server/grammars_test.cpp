// Constrained output: grammars are compiled once.
#include "server/grammars.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "inference/constraint/matcher.h"
#include "tokenizers/plain_codecs.h"

namespace megatron::server {
namespace {

TEST(Grammars, AreCompiledOnce) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)));
  const SharedGrammar first = grammars.regex("a+");
  EXPECT_EQ(grammars.regex("a+"), first);
  EXPECT_NE(grammars.regex("b+"), first);
  EXPECT_EQ(grammars.choice({"x.", "y"}), grammars.choice({"x.", "y"}));
  EXPECT_NE(grammars.json_schema(Json::Object{}, false), grammars.json_object());
  EXPECT_THROW(grammars.regex("("), Error);
}

// Fills the memory limit: each pattern of 300 repeats takes tens of kilobytes.
TEST(Grammars, AreForgottenByTheirBytes) {
  constexpr size_t kBytes = 1 << 20;
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)), kBytes);
  const SharedGrammar first = grammars.regex("a+");
  size_t all = 0;
  std::vector<SharedGrammar> kept;
  for (int i = 0; all < kBytes / 2; ++i) {
    kept.push_back(grammars.regex("[ab]{300}" + std::to_string(i)));
    all += kept.back()->bytes();
  }
  EXPECT_GT(kept.size(), 3u);
  EXPECT_EQ(grammars.regex("a+"), first);  // the most recently used
  EXPECT_EQ(grammars.regex("[ab]{300}0"), kept[0]);
  for (int i = 1000; all < 3 * kBytes / 2; ++i)
    all += grammars.regex("[ab]{300}" + std::to_string(i))->bytes();
  EXPECT_NE(grammars.regex("[ab]{300}1"), kept[1]) << "it was forgotten";
  EXPECT_EQ(grammars.regex("[ab]{300}0"), grammars.regex("[ab]{300}0"));
}

// The automaton's cache of texts counts too.
TEST(Grammars, AreForgottenWhenTheyHaveGrown) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)), 1 << 20);
  const SharedGrammar idle = grammars.regex("x+");
  const SharedGrammar grows = grammars.regex("[ab]*a[ab]{100}");
  EXPECT_EQ(grammars.regex("x+"), idle);
  EXPECT_EQ(grammars.regex("[ab]*a[ab]{100}"), grows);
  inference::Matcher matcher(grows, grammars.token_bytes());
  std::mt19937_64 random(3);
  while (grows->bytes() < 1 << 20) matcher.accept("ab"[random() % 2]);
  EXPECT_EQ(grammars.regex("[ab]*a[ab]{100}"), grows) << "the last one stays";
  EXPECT_NE(grammars.regex("x+"), idle) << "the two are too large together";
}

TEST(Grammars, RefuseOneThatIsTooLargeAlone) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)), 20'000);
  try {
    grammars.regex("[ab]{1000}");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("the limit is 20000"), std::string_view::npos)
        << error.what();
  }
}

TEST(Grammars, FindTheFirstTokensAtOnce) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_byte_codec(256)));
  std::string letters;
  for (char c = 'a'; c <= 'z'; ++c) letters += {c, '?', static_cast<char>(c - 'a' + 'A'), '?'};
  EXPECT_THROW(grammars.regex("(?:" + letters + "){1000}1"), inference::GrammarLimit);
}

TEST(UnenforcedList, IsAsciiAndBounded) {
  const auto list = [](const Json& schema) {
    return unenforced_list(*inference::Grammar::from_json_schema(schema));
  };
  EXPECT_EQ(list(Json::parse(R"({"type": "string"})")), "");
  EXPECT_EQ(list(Json::parse(R"({"properties": {"a, é": {"not": {}}}, "if": true})")),
            "#/if, #/properties/a%2C%20%C3%A9/not");
  Json properties = Json::Object{};
  for (int i = 0; i < 200; ++i)
    properties.set("p" + std::to_string(i), Json::Object{{"contains", true}});
  const std::string many = list(Json::Object{{"properties", std::move(properties)}});
  EXPECT_LT(many.size(), 1020u);
  EXPECT_NE(many.find(", and 1"), many.npos) << many;
}

TEST(Grammars, NeedTheBytesOfTokens) {
  Grammars grammars(tokenizers::Tokenizer(tokenizers::make_null_codec(10, 0)));
  EXPECT_THROW(grammars.json_object(), Error);
}

}  // namespace
}  // namespace megatron::server
