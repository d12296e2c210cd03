// A thousand random schemas for each of several tokenizers.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "schema_cases.h"

namespace megatron::inference {
namespace {

class ConstraintSeries : public ::testing::TestWithParam<const char*> {};

TEST_P(ConstraintSeries, TextsSatisfyAThousandSchemas) {
  const auto tokenizer =
      tokenizers::Tokenizer::load(std::string(MEGATRON_GOLDEN) + "/tokenizers/" + GetParam());
  const auto tokens = std::make_shared<const TokenBytes>(tokenizer);
  int texts = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed)
    texts += check_random_schema(tokenizer, tokens, seed);
  EXPECT_GT(texts, 9000);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, ConstraintSeries,
                         ::testing::Values("real/qwen_tiktoken", "real/gpt2", "real/mistral_v3",
                                           "trained/llama2", "sentencepiece/unigram_bytes"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '/' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace megatron::inference
