// `megatron train` on four ranks, TP 2 x PP 2: as threads, as processes, and after a rank has died.
#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "base/tolerances.h"
#include "golden/cli/tiny_run.h"
#include "hang_limit.h"

namespace megatron::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct StepLine {
  double loss = 0, norm = 0;
  bool operator==(const StepLine&) const = default;
};

class GridRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(MEGATRON_MPI).empty()) GTEST_SKIP() << "this build has no MPI";
  }

  // Trains a GPT-2 with tied embeddings and dropout, saving a checkpoint every third step.
  Words command(const std::string& folder, const Words& more, int steps = 6) const {
    Words words = {"train"};
    std::istringstream flags(
        "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --vocab-size 97 "
        "--mock-data --micro-batch-size 2 --global-batch-size 8 --lr 1e-3 --threads 1 "
        "--log-interval 1 --save-interval 3 --eval-interval 3 --eval-iters 1 "
        "--distributed-timeout-minutes 3 --lr-decay-iters 6");
    for (std::string word; flags >> word;) words.push_back(word);
    words =
        with(words, {"--train-iters", std::to_string(steps), "--save", folder, "--load", folder});
    return with(words, more);
  }
  static Words grid() {
    return {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"};
  }
  static Words launched(Words words) { return with({"launch", "-np", "4", "--no-prefix"}, words); }

  // The last log line of each step.
  std::map<int64_t, StepLine> steps(const std::string& folder) const {
    std::istringstream lines(read_file(place_ / (folder + "/log.jsonl")));
    std::map<int64_t, StepLine> found;
    for (std::string line; std::getline(lines, line);) {
      const Json record = Json::parse(line);
      if (record["type"].as_string() != "step") continue;
      found[record["iteration"].as_integer()] = {record["loss"].as_number(),
                                                 record["gradient_norm"].as_number()};
    }
    return found;
  }

  void expect_same_files(const std::string& a, const std::string& b,
                         const std::string& last) const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place_ / (a + last))) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string name = last + entry.path().filename().string();
      EXPECT_TRUE(read_file(place_ / (a + name)) == read_file(place_ / (b + name))) << name;
      ++files;
    }
    EXPECT_GE(files, 2);
  }

  Workplace place_;
};

TEST_F(GridRun, ProcessesAreThreadsAndOneRank) {
  const Outcome one = place_.run(command("one", {"--ranks", "1"}));
  ASSERT_EQ(one.code, 0) << one.err;
  const Outcome threads = place_.run(command("threads", with(grid(), {"--ranks", "4"})));
  ASSERT_EQ(threads.code, 0) << threads.err;
  const Outcome processes = place_.run(launched(command("processes", grid())));
  ASSERT_EQ(processes.code, 0) << processes.out << processes.err;
  EXPECT_EQ(steps("processes"), steps("threads"));
  expect_same_files("processes", "threads", "/iter_0000006/");
  const std::map<int64_t, StepLine> expected = steps("one");
  EXPECT_EQ(expected.size(), 6U);
  for (const auto& [iteration, step] : steps("processes")) {
    const StepLine& wanted = expected.at(iteration);
    EXPECT_LE(std::abs(step.loss - wanted.loss) / wanted.loss, tolerance::kLayoutFp32);
    EXPECT_LE(std::abs(step.norm - wanted.norm) / wanted.norm, tolerance::kLayoutFp32);
  }
}

// The process of a rank among the descendants of this process. 0 if there is none.
pid_t process_of_rank(const std::string& folder, int rank) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    const auto text = [&](const char* file) {
      std::ifstream in(entry.path() / file, std::ios::binary);
      return std::string((std::istreambuf_iterator<char>(in)), {});
    };
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path() / "cwd", error) != folder || error) continue;
    const std::string environment = '\0' + text("environ");
    for (const char* variable : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="}) {
      const std::string wanted = '\0' + (variable + std::to_string(rank)) + '\0';
      const bool is_guard = text("cmdline").find("--guard") != std::string::npos;
      if (environment.find(wanted) != environment.npos && text("comm").starts_with("megatron") &&
          !is_guard)
        return std::stoi(name);
    }
  }
  return 0;
}

TEST_F(GridRun, ARankThatIsKilledEndsAllAndTheRunGoesOn) {
  constexpr int kSteps = 40;  // still running, and can be killed, after the third step
  ASSERT_EQ(place_.run(command("whole", with(grid(), {"--ranks", "4"}), kSteps)).code, 0);
  Background run = place_.start(launched(command("killed", grid(), kSteps)));
  const std::string tracker = place_ / "killed/latest_checkpointed_iteration.txt";
  const auto began = Clock::now();
  while (!std::filesystem::exists(tracker) && !run.ended() &&
         Clock::now() - began < std::chrono::seconds(kHangSeconds))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const pid_t rank = process_of_rank(std::filesystem::canonical(place_.path()), 2);
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  const auto killed = Clock::now();
  const Outcome outcome = run.wait();
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(kHangSeconds));
  for (const int other : {0, 1, 3}) {
    const std::string report = "rank " + std::to_string(other) +
                               " was terminated by SIGTERM: "
                               "step ";
    EXPECT_NE(outcome.err.find(report), std::string::npos) << outcome.err;
  }
  EXPECT_NE(outcome.err.find("with signal 9 (SIGKILL)"), std::string::npos) << outcome.err;
  EXPECT_LT(std::stoll(read_file(tracker)), kSteps);
  const Outcome resumed = place_.run(launched(command("killed", grid(), kSteps)));
  ASSERT_EQ(resumed.code, 0) << resumed.out << resumed.err;
  EXPECT_NE((resumed.out + resumed.err).find("resuming from"), std::string::npos);
  EXPECT_EQ(steps("killed"), steps("whole"));
  expect_same_files("killed", "whole", "/iter_0000040/");
}

}  // namespace
}  // namespace megatron::testing
