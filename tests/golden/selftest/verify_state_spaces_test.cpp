// State spaces and hybrids of Hugging Face, however they are divided.
#include <gtest/gtest.h>

#include "selftest/verify.h"
#include "support.h"
#include "text.h"

namespace megatron::selftest {
namespace {

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

class StateSpaces : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string directory() { return vectors(std::string("hf/") + GetParam()); }
};

TEST_P(StateSpaces, AgreeWithHuggingFaceHoweverTheyAreDivided) {
  using enum parallel::ContextExchange;
  const int64_t compared = verify(directory(), {}).at(0).compared();
  EXPECT_GT(compared, 20);
  for (const VerifyOptions& options :
       {VerifyOptions{}, VerifyOptions{.tensor_parallel = 2}, VerifyOptions{.pipeline_parallel = 2},
        VerifyOptions{.tensor_parallel = 2, .pipeline_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.data_parallel = 2, .sharding = parallel::Sharding::parameters},
        VerifyOptions{.context_parallel = 2},
        VerifyOptions{.context_parallel = 2, .context_exchange = {all_gather}},
        VerifyOptions{.context_parallel = 2, .context_exchange = {a2a}}}) {
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

// Four tensor-parallel ranks share two groups, and a norm of them.
TEST(SharedGroups, AgreeWithHuggingFace) {
  for (const char* model : {"mamba2", "falcon_h1_norm"}) {
    for (const Report& report :
         verify(vectors(std::string("hf/") + model),
                {.tensor_parallel = 4, .context_parallel = 2, .sequence_parallel = true})) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_GT(report.compared(), 20);
    }
  }
}

TEST_P(StateSpaces, ComeBackByteForByte) {
  const TemporaryDirectory folder;
  const Report report = verify_rewrite(directory(), folder / "out");
  EXPECT_TRUE(report.passed()) << report.text();
}

TEST(StateSpaceDivision, IsRefusedByName) {
  const auto refusal = [](const char* model, const VerifyOptions& options) {
    return megatron::testing::error_of(
        [&] { verify(vectors(std::string("hf/") + model), options); });
  };
  using enum parallel::ContextExchange;
  EXPECT_NE(refusal("nemotron_h", {.tensor_parallel = 4}).find("--mamba-num-heads 6"),
            std::string::npos);
  EXPECT_NE(
      refusal("mamba2", {.tensor_parallel = 4, .context_parallel = 4, .context_exchange = {a2a}})
          .find("--cp-comm-type a2a divides the 2 heads and 1 groups"),
      std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Vectors, StateSpaces,
                         ::testing::Values("mamba2", "bamba", "nemotron_h", "nemotron_h_latent",
                                           "falcon_h1", "falcon_h1_norm", "zamba2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace megatron::selftest
