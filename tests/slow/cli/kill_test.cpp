#include "golden/cli/kill_series.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

TEST(Kill, HundredTimesOneRank) { KillSeries(1, 100, 3).run(); }
TEST(Kill, HundredTimesTwoRanks) { KillSeries(2, 100, 4).run(); }
TEST(Kill, HundredTimesTwoRanksOfExperts) { KillSeries(2, 100, 5, kExpertRanks).run(); }

TEST(Kill, FiftyTimesAdapters) {
  KillSeries({"--ranks 2 --use-distributed-optimizer"}, 50, 7,
             "train --finetune --mock-data --tokenizer-type NullTokenizer --lora-rank 4 --model " +
                 vectors("post_training/models/policy"))
      .run();
}

}  // namespace
}  // namespace megatron::testing
