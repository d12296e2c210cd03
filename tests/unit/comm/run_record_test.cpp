// The outcome of a run for every way in which ranks can end, without real processes.
#include "comm/launch/run_record.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace megatron::comm::launch {
namespace {

constexpr int exited(int code) { return code << 8; }
constexpr int killed(int signal) { return signal; }
constexpr bool kTold = true, kByItself = false;

RunRecord started(int ranks) {
  RunRecord record(ranks);
  for (int rank = 0; rank < ranks; ++rank) record.started();
  return record;
}

TEST(RunRecord, AllWell) {
  RunRecord record = started(2);
  record.ended(1, exited(0), kByItself, 1);
  EXPECT_EQ(record.due(1000), Step::none);  // a rank may end long before others
  EXPECT_FALSE(record.all_ended());
  record.ended(0, exited(0), kByItself, 1000);
  record.launcher_ended(exited(0), 1001);
  EXPECT_TRUE(record.all_ended());
  EXPECT_EQ(record.exit_code(), 0);
  EXPECT_EQ(record.verdict(), "");
}

TEST(RunRecord, OneFailsAndOthersAreEndedInTime) {
  RunRecord record = started(3);
  record.ended(1, exited(3), kByItself, 10);
  EXPECT_TRUE(record.failed());
  EXPECT_EQ(record.due(10), Step::none);
  EXPECT_EQ(record.due(10 + kGrace), Step::terminate);
  EXPECT_EQ(record.due(10 + kGrace), Step::none);  // reported once
  record.ended(0, killed(SIGTERM), kTold, 13);
  EXPECT_EQ(record.due(10 + kGrace + kGraceAfterTerm), Step::kill);
  EXPECT_EQ(record.due(1000), Step::none);
  record.ended(2, killed(SIGKILL), kTold, 18);
  EXPECT_EQ(record.exit_code(), 3);
  EXPECT_EQ(record.verdict(), "rank 1 failed first, with exit code 3");
}

TEST(RunRecord, ASignalIsNamed) {
  RunRecord record = started(2);
  record.ended(0, killed(SIGKILL), kByItself, 1);
  record.ended(1, exited(1), kByItself, 2);  // it noticed that the other had ended
  EXPECT_EQ(record.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(record.verdict(), "rank 0 failed first, with signal 9 (SIGKILL)");
}

TEST(RunRecord, TrainingThatWasEndedBySignalMaySave) {
  RunRecord record = started(2);
  record.ended(1, exited(kSavedAndEnded), kByItself, 10);
  EXPECT_EQ(record.due(10 + kGrace), Step::none);
  EXPECT_EQ(record.due(9 + kGraceToSave), Step::none);
  record.ended(0, exited(kSavedAndEnded), kByItself, 9 + kGraceToSave);
  EXPECT_EQ(record.exit_code(), kSavedAndEnded);
  EXPECT_EQ(record.verdict(),
            "all ranks ended early after a signal (exit code 4); the same command resumes the run");
}

TEST(RunRecord, AFailureWhileOthersSaveIsNotWaitedForAsLong) {
  RunRecord record = started(3);
  record.ended(1, exited(kSavedAndEnded), kByItself, 10);
  record.ended(0, exited(2), kByItself, 20);
  EXPECT_EQ(record.due(20 + kGrace), Step::terminate);
  record.ended(2, killed(SIGTERM), kTold, 23);
  EXPECT_NE(record.exit_code(), 0);
  EXPECT_NE(record.verdict().find("failed first"), std::string::npos);
}

TEST(RunRecord, WhoCalledMpiAbortIsNamed) {
  RunRecord record = started(2);
  record.ended(0, killed(SIGTERM), kTold, 1);  // by the launcher; this end is reported first
  record.ended(1, exited(7), kByItself, 1.1);
  EXPECT_EQ(record.exit_code(), 7);
  EXPECT_EQ(record.verdict(), "rank 1 failed first, with exit code 7");
}

TEST(RunRecord, TheLauncherMayBeTheOnlyOneToKnowTheCode) {
  RunRecord record = started(2);
  record.lost(0, 1);  // MPICH's launcher kills guards and programs together
  record.lost(1, 1);
  record.launcher_ended(exited(7), 1.2);
  EXPECT_EQ(record.exit_code(), 7);
  EXPECT_EQ(record.verdict(), "rank 0 was lost: its guard was killed");
}

TEST(RunRecord, ALostRankIsAFailure) {
  RunRecord record = started(2);
  record.ended(0, exited(0), kByItself, 1);
  record.lost(1, 2);
  record.launcher_ended(exited(0), 2.1);
  EXPECT_EQ(record.exit_code(), 128 + SIGKILL);
}

TEST(RunRecord, TheLauncherFailsBeforeRanksStart) {
  RunRecord record(4);
  record.started();
  record.launcher_ended(exited(213), 1);
  EXPECT_TRUE(record.failed());
  EXPECT_EQ(record.exit_code(), 213);
  EXPECT_EQ(record.due(1 + kGrace), Step::terminate);  // rank 0 waits for no other rank
  RunRecord silent(1);
  silent.launcher_ended(exited(0), 1);
  EXPECT_EQ(silent.exit_code(), 1);
  EXPECT_EQ(
      silent.verdict(),
      "the launcher ended (exit code 0) with 0 of 1 ranks started; see its output for the reason");
}

TEST(RunRecord, AskedToEnd) {
  RunRecord record = started(1);
  record.ask_to_end(5);
  EXPECT_EQ(record.due(100), Step::none);
  record.ended(0, killed(SIGKILL), kTold, 5.1);
  record.launcher_ended(killed(SIGSEGV), 5.2);  // however its launcher handles it
  EXPECT_EQ(record.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(record.verdict(), "rank 0 was ended with signal 9 (SIGKILL)");
}

}  // namespace
}  // namespace megatron::comm::launch
