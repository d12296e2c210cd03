#include "golden/cli/kill_series.h"

namespace megatron::testing {
namespace {

TEST(Kill, HundredTimesOneRank) { KillSeries(1, 100, 3).run(); }
TEST(Kill, HundredTimesTwoRanks) { KillSeries(2, 100, 4).run(); }
TEST(Kill, HundredTimesTwoRanksOfExperts) { KillSeries(2, 100, 5, kExpertRanks).run(); }

}  // namespace
}  // namespace megatron::testing
