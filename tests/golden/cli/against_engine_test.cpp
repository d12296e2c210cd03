// `megatron eval --against-engine`: training and the inference engine give the same bits.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"
#include "training/engine_comparison.h"

namespace megatron::testing {
namespace {

class AgainstEngine : public ::testing::TestWithParam<const char*> {
 protected:
  Words command(const Words& more) const {
    return with({"eval", "--load", vectors(std::string("hf/") + GetParam()), "--tokenizer-type",
                 "NullTokenizer", "--threads", "1", "--input", "ids.jsonl", "--against-engine"},
                more);
  }

  Workplace place_;
};

TEST_P(AgainstEngine, EveryBitIsEqual) {
  std::ofstream file(place_ / "ids.jsonl");
  for (const int64_t length : {40, 7, 51, 55}) {
    file << R"({"text": ")";
    for (int64_t i = 0; i < length; ++i) file << (i * i * 7 + length) % 90 << " ";
    file << "\"}\n";
  }
  file.close();
  for (const Words& type : {Words{}, Words{"--bf16"}}) {
    const Outcome r = place_.run(command(with({"--json"}, type)));
    ASSERT_EQ(r.code, 0) << r.err << r.out;
    const Json result = Json::parse(r.out);
    EXPECT_EQ(result["texts"].as_integer(), 4);
    EXPECT_EQ(result["tokens"].as_integer(), 40 + 7 + 51 + 55 - 4);
    for (const char* way : {"at_once", "by_token"})
      EXPECT_EQ(result[way]["different"].as_integer(), 0) << way;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AgainstEngine,
                         ::testing::Values("gpt2", "llama", "gemma2", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

TEST(EngineComparison, SaysWhatDiffers) {
  training::EngineComparison result{.texts = 2, .tokens = 50};
  EXPECT_TRUE(result.equal());
  EXPECT_NE(result.text().find("prompts at once: equal in every bit"), std::string::npos);
  result.by_token = {.different = 3, .largest = 0.25};
  EXPECT_FALSE(result.equal());
  EXPECT_NE(result.text().find("token by token: 3 differ, by at most 0.25"), std::string::npos)
      << result.text();
  EXPECT_EQ(result.json()["by_token"]["different"].as_integer(), 3);
}

TEST(AgainstEngineErrors, NameTheFlags) {
  const Workplace place;
  for (const auto& [line, part] :
       {std::pair{"eval --against-engine --load x", "--input FILE"},
        {"eval --against-engine --input x --load y --stride 3", "--stride does not apply"}}) {
    const Outcome r = place.run(words(line));
    EXPECT_EQ(r.code, 2) << r.out;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
}

}  // namespace
}  // namespace megatron::testing
