// Ranks as processes: this program starts itself under mpirun.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "dist/comm/scenarios.h"
#include "dist/launch.h"
#include "dist/ranks.h"
#include "hang_limit.h"
#include "text.h"

namespace megatron::testing {
namespace {

class ProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << kNoMpi;
  }
  static Launched scenario(int ranks, const std::string& name, const std::string& more = "") {
    return launch(ranks, this_program(), "--scenario=" + name + " " + more);
  }
};

class ProcessesOf : public ProcessesTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessesOf, ::testing::Values(2, 3, 4));

// Runs the tests for threads on processes. Tests of failures are excluded, because they end the
// run, and so are tests that read all ranks' memory.
std::string thread_tests(int ranks) {
  const std::string all =
      fmt::format("Ranks/Collectives.*/{}:Ranks/Async.*/{}", ranks - 1, ranks - 1);
  const std::string more = ranks == 2   ? ":Mismatch.RowCountsOfAllToAll:AsyncGroup.*:"
                                          "BesideFailure.*CallComesOut*"
                           : ranks == 3 ? ":Mismatch.IsToldOnEveryRank"
                                        : "";
  return "--gtest_filter=" + all + more + ":-*TwoHundredRounds*";
}

TEST_P(ProcessesOf, PassTheTestsOfThreads) {
  const int ranks = GetParam();
  const Launched run = launch(ranks, this_program(), thread_tests(ranks));
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_EQ(count(run.text, "[  PASSED  ] "), static_cast<size_t>(ranks)) << run.text;
  EXPECT_EQ(count(run.text, "0 tests ran"), 0u) << run.text;
}

TEST_P(ProcessesOf, PassThemWithMessagesCutAtAHundredBytes) {
  const int ranks = GetParam();
  const Launched run = launch(ranks, this_program(),
                              thread_tests(ranks) + ":*LargeAllReduce* --largest-message=100");
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_EQ(count(run.text, "[  PASSED  ] "), static_cast<size_t>(ranks)) << run.text;
}

// "rank R got DIGEST" for every rank, computed by threads.
std::vector<std::string> lines_of_threads(
    int ranks, const std::function<std::string(comm::Group& world)>& digest) {
  std::vector<std::string> lines(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Group& world) {
    lines[static_cast<size_t>(world.rank())] =
        fmt::format("rank {} got {}\n", world.rank(), digest(world));
  });
  return lines;
}

void expect_lines(const Launched& run, const std::vector<std::string>& lines) {
  EXPECT_EQ(run.code, 0) << run.text;
  for (const std::string& line : lines) expect_contains(run.text, {line});
}

TEST_P(ProcessesOf, GetTheBitsOfThreads) {
  const auto lines = lines_of_threads(
      GetParam(), [](comm::Group& world) { return digest_of_collectives(world, 1, 100); });
  EXPECT_NE(lines[0].substr(10), lines[1].substr(10));
  expect_lines(scenario(GetParam(), "digests"), lines);
  expect_lines(scenario(GetParam(), "digests", "--largest-message=7000"), lines);
}

TEST_F(ProcessesTest, GetTheBitsOfThreadsInAReductionOfSeveralChunks) {
  expect_lines(scenario(3, "large-digest"), lines_of_threads(3, digest_of_large_reduction));
}

TEST_F(ProcessesTest, KnowWhatTheyRunUnder) {
  const Launched two = scenario(2, "place");
  EXPECT_EQ(two.code, 0);
  expect_contains(two.text, {"rank 0 of 2, 2 processes under ", "rank 1 of 2, 2 processes under "});
  const std::string kind = MEGATRON_MPI;
  if (kind == "openmpi") expect_contains(two.text, {"under Open MPI "});
  if (kind == "mpich") expect_contains(two.text, {"under MPICH "});
  const Launched one = scenario(1, "place");
  EXPECT_EQ(one.code, 0);
  expect_contains(one.text, {"rank 0 of 1, one process\n"});
}

TEST_F(ProcessesTest, TellAFailureThatAllHaveAlikeOnce) {
  for (const int ranks : {2, 4}) {
    const Launched run = scenario(ranks, "fail-alike");
    EXPECT_EQ(run.code, 2) << run.text;
    EXPECT_EQ(count(run.text, "error: no flag --sedd"), 1u) << run.text;
  }
}

TEST_F(ProcessesTest, EndTogetherWhenOneFails) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const Launched run = scenario(3, "fail-alone");
  EXPECT_EQ(run.code, 5) << run.text;
  EXPECT_EQ(count(run.text, "error: disk 7 is full"), 1u) << run.text;
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), testing::kHangSeconds);
}

TEST_F(ProcessesTest, DoNotWaitForOthersWhileAnExceptionUnwinds) {
  const Launched run = scenario(3, "fail-unwinding");
  // MPICH's launcher kills the other ranks when one leaves without a message, and returns the
  // bitwise or of all exit codes and signals. The result is then 9, unless the launcher saw the
  // first end before it killed the others.
  EXPECT_TRUE(run.code == 3 || (run.code == 9 && std::string(MEGATRON_MPI) == "mpich")) << run.text;
  EXPECT_EQ(count(run.text, "error: disk 8 is full"), 1u) << run.text;
}

TEST_F(ProcessesTest, ARankThatEndsTooEarlyIsNoHang) {
  const Launched run = scenario(3, "end-early");
  EXPECT_EQ(run.code, 6) << run.text;
  expect_contains(run.text, {"all_reduce 'step 5'", "rank 1 calls barrier 'end of the run'"});
}

TEST_F(ProcessesTest, AMessageThatNobodyReceivesIsNoHang) {
  const Launched run = scenario(2, "send-to-nobody");
  EXPECT_EQ(run.code, 1) << run.text;
  expect_contains(run.text, {"rank 0 sent 'activations 9' to rank 1"});
}

TEST_F(ProcessesTest, AMessageOfAnotherNameIsToldByItsReceiver) {
  const Launched run = scenario(2, "mismatched-message");
  EXPECT_EQ(run.code, 7) << run.text;
  expect_contains(run.text, {"rank 0 sent 'forward 3'", "rank 1 waits for 'forward 4'"});
}

TEST_F(ProcessesTest, WaitWithoutACore) {
  const Launched run = scenario(4, "wait-idly");
  EXPECT_EQ(run.code, 0) << run.text;
  const size_t at = run.text.find("waited ");
  ASSERT_NE(at, std::string::npos) << run.text;
  double waited = 0, computed = 0;
  ASSERT_EQ(std::sscanf(run.text.c_str() + at, "waited %lf s, computed %lf s", &waited, &computed),
            2);
  EXPECT_GT(waited, 0.9);
  EXPECT_LT(computed, 0.25 * waited);
}

// Launchers of another MPI and of no MPI. In a build without MPI, any MPI launcher.
TEST(Launcher, OfAnotherKindIsToldSo) {
  const std::string kind = MEGATRON_MPI;
  const std::string other =
      kind == "mpich" ? "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 " : "PMI_RANK=0 PMI_SIZE=2 ";
  const std::string around = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=1 ";
  const Launched run =
      run_line(container_settings() + other + around + this_program() + " --scenario=place",
               testing::kHangSeconds);
  EXPECT_EQ(run.code, 3) << run.text;
  if (has_mpi()) {
    expect_contains(run.text, {"rank 0 of 2 processes", "found rank 0 of 1", "megatron launch",
                               "are ignored: RANK=0, WORLD_SIZE=1"});
  } else {
    expect_contains(run.text, {"started 2 processes", "without MPI", "libopenmpi-dev"});
  }
}

// Processes without MPI connect at MASTER_ADDR:MASTER_PORT.
TEST(Launcher, ThatTellsNoPortIsToldSo) {
  for (const std::string& port : {std::string(), std::string("MASTER_PORT=-1 ")}) {
    const Launched run =
        run_line(container_settings() + "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost " + port +
                     this_program() + " --scenario=place",
                 60);
    EXPECT_EQ(run.code, 3) << run.text;
    expect_contains(run.text, {"MASTER_PORT", "port"});
  }
}

}  // namespace
}  // namespace megatron::testing
