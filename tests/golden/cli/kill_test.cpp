// A run that is killed repeatedly gives the same results as one that is never killed.
#include "golden/cli/kill_series.h"

namespace megatron::testing {
namespace {

// Nine kills with one rank and with two, in short tests; slow/cli has a hundred of each.
class Kill : public ::testing::TestWithParam<std::tuple<int, unsigned>> {};

TEST_P(Kill, ThreeTimes) {
  const auto [ranks, part] = GetParam();
  KillSeries(ranks, 3, 10 * part + static_cast<unsigned>(ranks)).run();
}

INSTANTIATE_TEST_SUITE_P(Series, Kill,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Range(0U, 3U)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_part" +
                                  std::to_string(std::get<1>(info.param));
                         });

class KillOfExperts : public ::testing::TestWithParam<unsigned> {};

TEST_P(KillOfExperts, FiveTimes) { KillSeries(2, 5, 100 + GetParam(), kExpertRanks).run(); }

INSTANTIATE_TEST_SUITE_P(Series, KillOfExperts, ::testing::Values(0U, 1U));

// Each resumed run has a different context-parallel size from the run that was killed.
TEST(KillOfContextRanks, BetweenFourPairsOfSizes) {
  KillSeries({"--ranks 1", "--context-parallel-size 2", "--context-parallel-size 4",
              "--ranks 4 --context-parallel-size 2 --cp-comm-type a2a --use-distributed-optimizer"},
             4, 6)
      .run();
}

}  // namespace
}  // namespace megatron::testing
