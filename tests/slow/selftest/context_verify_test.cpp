// Hugging Face's models on eight context-parallel ranks. No sequence of the vectors is a multiple
// of 16 tokens, so all are padded.
#include <gtest/gtest.h>

#include <iostream>

#include "selftest/verify.h"

namespace megatron::selftest {
namespace {

using parallel::ContextExchange;

class EightContextRanks : public ::testing::TestWithParam<const char*> {};

// Without a2a, because no model has a head for each of eight ranks.
TEST_P(EightContextRanks, AgreeWithHuggingFace) {
  const std::string directory = std::string(MEGATRON_GOLDEN) + "/hf/" + GetParam();
  const int64_t compared = verify(directory, {}).at(0).compared();
  for (const VerifyOptions& options :
       {VerifyOptions{.context_parallel = 8, .context_exchange = {ContextExchange::p2p}},
        VerifyOptions{.context_parallel = 8, .context_exchange = {ContextExchange::all_gather}},
        VerifyOptions{.context_parallel = 8,
                      .context_exchange = {ContextExchange::a2a_p2p},
                      .context_levels = {2, 4}},
        VerifyOptions{.context_parallel = 8,
                      .context_exchange = {ContextExchange::a2a_p2p},
                      .context_levels = {4, 2}}})
    for (const Report& report : verify(directory, options)) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), compared);
      EXPECT_NE(report.text().find("tokens padded to"), std::string::npos) << report.text();
      std::cout << report.text();
    }
}

INSTANTIATE_TEST_SUITE_P(Vectors, EightContextRanks,
                         ::testing::Values("gpt2", "llama", "llama_yarn", "mistral", "gemma2",
                                           "gemma3_text", "cohere2", "llama4_text", "qwen3_moe",
                                           "mixtral", "gpt_oss"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron::selftest
