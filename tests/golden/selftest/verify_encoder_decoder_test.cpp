// Verifies T5 directories of Hugging Face and a training trajectory, in pipelines whose border
// between encoder and decoder lies between stages and inside one, and in other layouts.
#include <gtest/gtest.h>

#include "base/error.h"
#include "selftest/compare_directories.h"
#include "selftest/trajectory.h"
#include "selftest/verify.h"
#include "support.h"

namespace megatron::selftest {
namespace {

using megatron::testing::TemporaryDirectory;
using megatron::testing::vectors;

void expect_all(const std::vector<Report>& reports) {
  EXPECT_EQ(reports.size(), 2u);
  for (const Report& report : reports) EXPECT_TRUE(report.passed()) << report.text();
}

class EncoderDecoder : public ::testing::TestWithParam<const char*> {
 protected:
  std::string directory() const { return vectors(std::string("t5/hf/") + GetParam()); }
  bool has_three_heads() const { return std::string(GetParam()) == "t5_v1_1"; }
};

TEST_P(EncoderDecoder, AgreesWithHuggingFace) {
  const std::vector<Report> reports = verify(directory(), {});
  expect_all(reports);
  for (const Report& report : reports) EXPECT_GT(report.compared(), 50) << report.text();
}

TEST_P(EncoderDecoder, ComesBackByteForByte) {
  const TemporaryDirectory out;
  const Report report = verify_rewrite(directory(), out / "out");
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_GT(report.compared(), 40);
}

// The two stacks have five layers together, three of one and two of the other.
TEST_P(EncoderDecoder, AgreesHoweverItIsDivided) {
  const int64_t compared = verify(directory(), {}).at(0).compared();
  for (const VerifyOptions& options :
       {VerifyOptions{.pipeline_parallel = 2}, VerifyOptions{.pipeline_parallel = 3},
        VerifyOptions{.pipeline_parallel = 5}, VerifyOptions{.context_parallel = 2},
        VerifyOptions{.pipeline_parallel = 2, .context_parallel = 2},
        VerifyOptions{.data_parallel = 2, .sharding = parallel::Sharding::parameters}}) {
    const std::vector<Report> reports = verify(directory(), options);
    expect_all(reports);
    for (const Report& report : reports) EXPECT_EQ(report.compared(), compared) << report.text();
  }
}

TEST_P(EncoderDecoder, AgreesWithDividedHeads) {
  const VerifyOptions tensor{.tensor_parallel = 2, .sequence_parallel = true};
  if (has_three_heads()) {
    EXPECT_THROW(verify(directory(), tensor), Error);
    return;
  }
  expect_all(verify(directory(), tensor));
  expect_all(verify(directory(), {.tensor_parallel = 2, .pipeline_parallel = 3}));
  expect_all(verify(directory(),
                    {.context_parallel = 2, .context_exchange = {parallel::ContextExchange::a2a}}));
}

INSTANTIATE_TEST_SUITE_P(Vectors, EncoderDecoder, ::testing::Values("t5", "t5_v1_1", "umt5"),
                         [](const auto& info) { return std::string(info.param); });

TEST(EncoderDecoderTrajectory, IsMet) {
  const std::string directory = vectors("t5/train/t5");
  expect_all(verify_trajectory(directory, {}));
  expect_all(verify_trajectory(directory,
                               {.tensor_parallel = 2, .pipeline_parallel = 2, .data_parallel = 2}));
}

}  // namespace
}  // namespace megatron::selftest
