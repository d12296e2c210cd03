// Output constrained by grammars, with tokenizers of every kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "schema_cases.h"

namespace megatron::inference {
namespace {

struct Known {
  tokenizers::Tokenizer tokenizer;
  std::shared_ptr<const TokenBytes> tokens;

  explicit Known(const std::string& folder)
      : tokenizer(
            tokenizers::Tokenizer::load(std::string(MEGATRON_GOLDEN) + "/tokenizers/" + folder)),
        tokens(std::make_shared<const TokenBytes>(tokenizer)) {}
};

class Constraint : public ::testing::TestWithParam<const char*> {};

TEST_P(Constraint, TextsSatisfyTheirSchemas) {
  const Known known(GetParam());
  int texts = 0;
  uint64_t first = 0;  // seed of the schemas
  for (const char c : std::string_view(GetParam())) first = 31 * first + static_cast<uint8_t>(c);
  for (uint64_t seed = first; seed < first + 20; ++seed)
    texts += std::max(0, check_random_schema(known.tokenizer, known.tokens, seed));
  const bool spells_json = known.tokens->single()['{'];
  EXPECT_EQ(texts > 100, spells_json) << texts;
}

// Texts match exactly, including spaces that decoders drop.
TEST_P(Constraint, TextsMatchTheirPatterns) {
  const Known known(GetParam());
  std::mt19937_64 random(5);
  const auto check = [&](const char* pattern) {
    const auto grammar = Grammar::from_regex(pattern);
    const Matcher start(grammar, known.tokens);
    check_mask(start, known.tokens, 1 + known.tokens->size() / 2000);
    for (int i = 0; i < 10; ++i) {
      const auto ids = RandomText(known.tokens, random).draw(start, i);
      ASSERT_TRUE(ids) << pattern;
      const std::string text = known.tokenizer.decode(*ids);
      EXPECT_EQ(reads(grammar, text), 1) << "'" << text << "' of " << pattern;
    }
  };
  for (const char* pattern : {"[a-z]{1,8}(?: [a-z]{1,8}){0,3}", " ?a(?: {0,3}|b)", "a  b",
                              "[ab]| [ab]", "(?:é|漢|😀|e)*", "| b"})
    check(pattern);
  // The text begins with a space.
  for (const char* pattern : {" [a-c]{1,3}", "  b", " {1,4}a"}) {
    if (known.tokens->joining() == tokenizers::Joining::leading_spaces) {
      EXPECT_THROW(Matcher(Grammar::from_regex(pattern), known.tokens), Error) << pattern;
    } else {
      check(pattern);
    }
  }
}

// The constraint accepts a text that the model generated, token by token.
TEST_P(Constraint, TakesTheTokenizersOwnTokens) {
  const Known known(GetParam());
  if (known.tokens->joining() == tokenizers::Joining::first_token_spaces) return;
  const std::string text = "the word and 2024 more";
  Matcher matcher(Grammar::from_regex("[a-z0-9 ]+"), known.tokens);
  std::vector<uint64_t> mask(known.tokens->words());
  bool complete = false;
  for (const int32_t id : known.tokenizer.encode(text)) {
    matcher.allowed(mask, complete);
    ASSERT_TRUE(is_set(mask, id)) << known.tokenizer.token(id);
    matcher.accept(id);
  }
  EXPECT_TRUE(matcher.complete());
}

TEST_P(Constraint, AllowsNoSpecialToken) {
  const Known known(GetParam());
  Matcher matcher(Grammar::from_regex("[^a]*[\\s\\S]*"), known.tokens);
  std::vector<uint64_t> mask(known.tokens->words());
  bool complete = false;
  matcher.allowed(mask, complete);
  for (int32_t id = 0; id < known.tokens->size(); ++id) {
    const bool is_text = known.tokenizer.codec().contains(id) && !known.tokenizer.is_special(id);
    EXPECT_TRUE(is_text || !is_set(mask, id)) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, Constraint,
    ::testing::Values("trained/gpt2", "trained/roberta", "trained/llama3", "trained/qwen2",
                      "trained/deepseek_v3", "trained/o200k", "trained/llama2", "trained/gemma",
                      "trained/mistral_metaspace", "trained/unigram_t5", "trained/unigram_albert",
                      "sentencepiece/bpe_llama", "sentencepiece/bpe_unk",
                      "sentencepiece/unigram_bytes", "sentencepiece/unigram_nfkc_cf",
                      "sentencepiece/unigram_suffix", "sentencepiece/bpe_llama_json",
                      "real/mistral_v3", "tik_token/letters"),
    [](const auto& info) {
      std::string name = info.param;
      std::ranges::replace(name, '/', '_');
      return name;
    });

TEST(ConstraintTokens, StopsWhereMasksTakeTooLong) {
  const Known known("real/gpt2");
  Matcher matcher(Grammar::from_regex("(?:[a-m]{0,30}|[f-z ]{0,40}|[aeiou]{0,7}){1000}"),
                  known.tokens);
  std::vector<uint64_t> mask(known.tokens->words());
  bool complete = false;
  try {
    matcher.allowed(mask, complete);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("too ambiguous"), std::string_view::npos);
  }
}

TEST(ConstraintTokens, RefusesTokensThatDependOnTheirNeighbors) {
  for (const char* folder :
       {"trained/bert_cased", "trained/bert_uncased", "trained/clip", "trained/wordlevel"})
    EXPECT_THROW(Known{folder}, Error) << folder;
}

}  // namespace
}  // namespace megatron::inference
