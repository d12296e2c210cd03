// State spaces and hybrids of Hugging Face, however they are divided.
#include <gtest/gtest.h>

#include "base/error.h"
#include "selftest/verify.h"
#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

class StateSpaces : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string directory() { return vectors(std::string("hf/") + GetParam()); }
};

TEST_P(StateSpaces, AgreeWithHuggingFaceHoweverTheyAreDivided) {
  const int64_t compared = verify(directory(), {}).at(0).compared();
  EXPECT_GT(compared, 20);
  for (const VerifyOptions& options :
       {VerifyOptions{}, VerifyOptions{.tensor_parallel = 2}, VerifyOptions{.pipeline_parallel = 2},
        VerifyOptions{.tensor_parallel = 2, .pipeline_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.data_parallel = 2, .sharding = parallel::Sharding::parameters}}) {
    const std::vector<Report> reports = verify(directory(), options);
    EXPECT_EQ(reports.size(), 2u);
    for (const Report& report : reports) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), compared) << report.text();
    }
  }
}

// Each layer is on a stage of its own: those between the uses of a block pass on what they need.
TEST(SharedBlocks, AgreeWithHuggingFaceOnStagesApart) {
  for (const Report& report : verify(vectors("hf/zamba2"), {.pipeline_parallel = 5}))
    EXPECT_TRUE(report.passed()) << report.text();
}

TEST_P(StateSpaces, ComeBackByteForByte) {
  const TemporaryDirectory folder;
  const Report report = verify_rewrite(directory(), folder / "out");
  EXPECT_TRUE(report.passed()) << report.text();
}

TEST_P(StateSpaces, AreRefusedOnDividedSequences) {
  try {
    verify(directory(), {.context_parallel = 2});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--context-parallel-size 2"), std::string::npos)
        << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, StateSpaces,
                         ::testing::Values("mamba2", "bamba", "nemotron_h", "falcon_h1",
                                           "falcon_h1_norm", "zamba2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron::selftest
