// An auxiliary loss in every layer, in all rows of the layout matrix (dist/selftest has some).
#include <gtest/gtest.h>

#include "selftest/layout_matrix.h"
#include "toy_model.h"

namespace megatron::selftest {
namespace {

constexpr size_t kRowParts = 8;
class AuxiliaryLossRows : public ::testing::TestWithParam<size_t> {};

TEST_P(AuxiliaryLossRows, AreThoseOfOneRank) {
  const LayoutMatrix matrix(2);
  const Environment environment;
  MatrixRun run(environment, Precisions::all, DeviceKind::cpu, testing::toy_model());
  for (size_t i = GetParam(); i < matrix.rows().size(); i += kRowParts) {
    const MatrixRow& row = matrix.rows()[i];
    // The layers of an encoder read texts without labels, by which the toy would weigh its loss.
    if (row.task != MatrixTask::next_tokens || row.is_encoder_decoder()) continue;
    const Report report = run.run(row);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, AuxiliaryLossRows, ::testing::Range<size_t>(0, kRowParts));

}  // namespace
}  // namespace megatron::selftest
