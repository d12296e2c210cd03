// A run that is killed again and again is the run that never was.
#include "golden/cli/kill_series.h"

namespace megatron::testing {
namespace {

TEST(Kill, ThirtyTimesOneRank) { KillSeries(1, 30, 1).run(); }
TEST(Kill, ThirtyTimesTwoRanks) { KillSeries(2, 30, 2).run(); }

}  // namespace
}  // namespace megatron::testing
