#include "comm/hang_report.h"

#include <gtest/gtest.h>

#include <optional>

#include "text.h"

namespace megatron::comm {
namespace {

using testing::expect_contains;

CallHeader reduce() {
  CallHeader header = {"all_reduce", "loss", DType::f32, 8};
  return header;
}

TEST(Doing, IsToldInOneOrder) {
  Doing doing;
  EXPECT_FALSE(doing.state().known());
  EXPECT_EQ(describe(doing.state()), "nothing known");
  doing.step(7);
  doing.phase("backward");
  doing.layer("decoder.3.mlp");
  doing.micro_batch(2);
  EXPECT_EQ(describe(doing.state()), "step 7, backward, layer decoder.3.mlp, micro-batch 2");
  doing.phase("update");
  EXPECT_EQ(describe(doing.state()), "step 7, update");
  doing.step(8);
  EXPECT_EQ(describe(doing.state()), "step 8");
  doing.nothing();
  EXPECT_FALSE(doing.state().known());
}

TEST(CallText, HasNumberAndGroup) {
  CallHeader header = reduce();
  EXPECT_EQ(describe(header), "all_reduce 'loss' (8 bytes of f32, sum)");
  header.group = "tp";
  header.number = 12;
  EXPECT_EQ(describe(header), "all_reduce 'loss' (call 12 of 'tp', 8 bytes of f32, sum)");
  EXPECT_EQ(short_text(header), "all_reduce 'loss' (call 12 of 'tp')");
  header.operation = "recv";
  EXPECT_EQ(describe(header), "recv 'loss' (message 12 of 'tp', 8 bytes of f32)");
  CallHeader barrier = {"barrier", "end"};
  EXPECT_EQ(describe(barrier), "barrier 'end'");
}

// Two ranks of a group of three: rank 4 is in its second call, rank 7 has ended its first.
class Ranks : public ::testing::Test {
 protected:
  static constexpr uint64_t kGroup = 55;

  Ranks() {
    CallHeader first = reduce(), again = reduce();
    {
      const OpenCall open(four_, *group_of_four_, first);
    }
    {
      const OpenCall open(seven_, *group_of_seven_, again);
    }
    seven_.doing().phase("forward");
  }

  RankRecord four_{4}, seven_{7};
  std::shared_ptr<GroupRecord> group_of_four_ = four_.add_group(kGroup, "dp", {4, 7, 9}),
                               group_of_seven_ = seven_.add_group(kGroup, "dp", {4, 7, 9});
};

TEST_F(Ranks, ACallIsNumberedAndShownWhileItIsOpen) {
  EXPECT_EQ(four_.longest(), 0);
  CallHeader second = reduce();
  {
    const OpenCall open(four_, *group_of_four_, second);
    EXPECT_EQ(second.number, 2);
    EXPECT_EQ(second.group, "dp");
    EXPECT_GT(four_.longest(), 0);
    const RankReport report = four_.report();
    ASSERT_EQ(report.calls.size(), 1u);
    EXPECT_EQ(report.calls[0].members, (std::vector<int>{4, 7, 9}));
    EXPECT_EQ(report.calls[0].place, 0);
    EXPECT_EQ(report.last_call, "all_reduce 'loss' (call 1 of 'dp')");
  }
  EXPECT_EQ(four_.longest(), 0);
  EXPECT_TRUE(four_.report().calls.empty());
  EXPECT_EQ(four_.report().last_call, "all_reduce 'loss' (call 2 of 'dp')");
}

TEST_F(Ranks, AReportTravels) {
  CallHeader second = reduce();
  const OpenCall open(four_, *group_of_four_, second);
  four_.sent(*group_of_four_, 2);
  four_.doing().step(3);
  four_.doing().layer("decoder \"1\"");
  const RankReport report = four_.report();
  const RankReport other = RankReport::unpacked(report.packed());
  EXPECT_EQ(other.packed(), report.packed());
  EXPECT_EQ(other.doing.layer, "decoder \"1\"");
  ASSERT_EQ(other.groups.size(), 1u);
  EXPECT_EQ(other.groups[0].sent, (std::vector<int64_t>{0, 0, 1}));
}

TEST_F(Ranks, WhoHasNotComeIsMissing) {
  CallHeader second = reduce();
  const OpenCall open(four_, *group_of_four_, second);
  std::vector<RankReport> reports = {four_.report(), seven_.report()};
  EXPECT_EQ(missing(reports[0].calls[0], 4, reports), (std::vector<int>{7, 9}));
  const std::string text = hang_text(reports, 2.5);
  expect_contains(text, {"rank 4 is in all_reduce 'loss' (call 2 of 'dp', 8 bytes of f32, sum) for",
                         "ranks 7 and 9 have not arrived", "the timeout is 2.5 s",
                         "--distributed-timeout-minutes", "rank 7: forward; in no call for",
                         "after all_reduce 'loss' (call 1 of 'dp')"});
  // Rank 7 arrives, and continues.
  {
    CallHeader here = reduce();
    const OpenCall come(seven_, *group_of_seven_, here);
    reports = {four_.report(), seven_.report()};
    EXPECT_EQ(missing(reports[0].calls[0], 4, reports), (std::vector<int>{9}));
  }
  reports[1] = seven_.report();
  EXPECT_EQ(missing(reports[0].calls[0], 4, reports), (std::vector<int>{9}));
}

TEST_F(Ranks, ARecvMissesItsSenderUntilTheMessageIsSent) {
  CallHeader header = {"recv", "forward", DType::f32, 8};
  const OpenCall open(seven_, *group_of_seven_, header, 0);
  EXPECT_EQ(header.number, 1);
  four_.sent(*group_of_four_, 2);  // to another
  std::vector<RankReport> reports = {four_.report(), seven_.report()};
  EXPECT_EQ(missing(reports[1].calls[0], 7, reports), (std::vector<int>{4}));
  EXPECT_EQ(waits_for_ever(reports[1], {reports.data(), 1}, 0),
            "rank 4 has exited while rank 7 is waiting for it in recv 'forward' (message 1 of "
            "'dp', 8 bytes of f32)");
  EXPECT_EQ(waits_for_ever(reports[1], {reports.data(), 1}, 60), "") << "too soon to tell";
  four_.sent(*group_of_four_, 1);
  reports[0] = four_.report();
  EXPECT_TRUE(missing(reports[1].calls[0], 7, reports).empty());
  EXPECT_EQ(waits_for_ever(reports[1], {reports.data(), 1}, 0), "");
}

// A pipeline of waits: rank 0 waits for rank 1, which waits for rank 2.
class Chain : public ::testing::Test {
 protected:
  static constexpr uint64_t kPair = 7;

  std::vector<RankReport> reports() const { return {zero_.report(), one_.report(), two_.report()}; }

  RankRecord zero_{0}, one_{1}, two_{2};
  std::shared_ptr<GroupRecord> of_zero_ = zero_.add_group(kPair, "dp", {0, 1}),
                               of_one_ = one_.add_group(kPair, "dp", {0, 1}),
                               tp_of_one_ = one_.add_group(kPair + 1, "tp", {1, 2}),
                               tp_of_two_ = two_.add_group(kPair + 1, "tp", {1, 2});
};

TEST_F(Chain, TheNoticeNamesTheRankAtItsEnd) {
  CallHeader grads = reduce(), rows = {"all_reduce", "rows", DType::f32, 8};
  const OpenCall zeros(zero_, *of_zero_, grads), ones(one_, *tp_of_one_, rows);
  one_.doing().step(7);
  one_.doing().phase("backward");
  two_.doing().step(7);
  two_.doing().phase("forward");
  two_.doing().layer("decoder.3.mlp");
  const WaitNotice notice = wait_notice(reports(), {600, 30});
  EXPECT_EQ(notice.awaited, "rank 2");
  EXPECT_FALSE(notice.usual);
  expect_contains(
      notice.text,
      {"rank 1 has waited 0.0 s for rank 2 in all_reduce 'rows' (call 1 of 'tp', 8 bytes of f32, "
       "sum) (step 7, backward), and 1 more wait; rank 2: step 7, forward, layer decoder.3.mlp; "
       "in no call so far. The run continues; it is aborted if a call takes 600 s "
       "(--distributed-timeout-minutes)"});
  EXPECT_EQ(notice.text.find('\n'), std::string::npos);

  two_.doing().phase("save", true);
  const WaitNotice save = wait_notice(reports(), {0, 30});
  EXPECT_TRUE(save.usual);
  expect_contains(save.text,
                  {"rank 2: step 7, save; in no call so far (this may take long). The run "
                   "continues, with no timeout"});
}

TEST_F(Chain, TheNoticeOfACircleNamesWhomTheLongestWaitsFor) {
  CallHeader grads = reduce(), rows = {"all_reduce", "rows", DType::f32, 8};
  const auto world_of_zero = zero_.add_group(kWorldId, "world", {0, 1}),
             world_of_one = one_.add_group(kWorldId, "world", {0, 1});
  CallHeader barrier = {"barrier", "step"};
  const OpenCall zeros(zero_, *of_zero_, grads), ones(one_, *world_of_one, barrier);
  std::vector<RankReport> both = reports();
  both[0].calls[0].seconds = 42;
  const WaitNotice notice = wait_notice(both, {600, 30});
  expect_contains(notice.text,
                  {"rank 0 has waited 42.0 s for rank 1 in all_reduce 'loss'",
                   "rank 1: nothing known; in barrier 'step' (call 1 of 'world') for"});
  EXPECT_EQ(notice.awaited, "rank 1");
}

TEST_F(Chain, TheNoticeSaysWhereAllHaveCome) {
  CallHeader grads = reduce(), also = reduce();
  EXPECT_EQ(wait_notice(reports(), {600, 30}).text, "");
  const OpenCall zeros(zero_, *of_zero_, grads), ones(one_, *of_one_, also);
  const WaitNotice notice = wait_notice(reports(), {600, 30});
  EXPECT_TRUE(notice.usual);
  EXPECT_EQ(notice.awaited, "");
  expect_contains(notice.text, {"; all ranks have arrived. The run continues"});
}

TEST(ManyRanks, AreNamedInALineOfTheLog) {
  constexpr int kRanks = 1000;
  std::vector<int> members;
  for (int r = 0; r < kRanks; ++r) members.push_back(r);
  std::vector<RankReport> reports;
  for (int r = 0; r < kRanks; ++r) {
    RankRecord record(r);
    const auto group = record.add_group(kWorldId, "world", members);
    CallHeader header = reduce();
    std::optional<OpenCall> open;
    if (r % 2 == 0) open.emplace(record, *group, header);
    reports.push_back(record.report());
  }
  const WaitNotice notice = wait_notice(reports, {600, 30});
  EXPECT_EQ(notice.awaited, "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 492 more");
  EXPECT_LE(notice.text.size(), 500u) << notice.text;
}

TEST(GroupIds, OfPartsDiffer) {
  GroupRecord world;
  world.id = 1;
  world.calls = 1;
  const uint64_t a = world.id_of_part(0), b = world.id_of_part(1);
  world.calls = 2;
  EXPECT_NE(a, b);
  EXPECT_NE(a, world.id_of_part(0));
  EXPECT_LE(a, static_cast<uint64_t>(INT64_MAX));
}

}  // namespace
}  // namespace megatron::comm
