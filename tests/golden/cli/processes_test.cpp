// Ranks as processes give the same run as ranks as threads.
#include <sstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

class ProcessRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string_view(MEGATRON_MPI).empty()) GTEST_SKIP() << "this build has no MPI";
    make_tiny_run(place_);
  }

  // 12 steps on two ranks with a checkpoint every third step. launched: run the ranks as processes.
  Words command(const std::string& folder, bool launched, const Words& more = {}) const {
    Words words = tiny_train(12, 2);
    if (launched) words.insert(words.begin(), {"launch", "-np", "2"});
    return with(with(words, {"--save", folder, "--load", folder, "--save-interval", "3",
                             "--log-interval", "1"}),
                more);
  }

  std::string step_lines(const std::string& folder) const {
    std::istringstream lines(read_file(place_ / (folder + "/log.jsonl")));
    std::string found;
    for (std::string line; std::getline(lines, line);) {
      const Json record = Json::parse(line);
      if (record["type"].as_string() != "step") continue;
      found += record["iteration"].dump() + " " + record["loss"].dump() + " " +
               record["gradient_norm"].dump() + "\n";
    }
    return found;
  }

  void expect_same(const std::string& a, const std::string& b) const {
    EXPECT_EQ(step_lines(a), step_lines(b));
    for (const auto& entry : std::filesystem::directory_iterator(place_ / (a + "/iter_0000012"))) {
      const std::string name = "/iter_0000012/" + entry.path().filename().string();
      EXPECT_TRUE(read_file(place_ / (a + name)) == read_file(place_ / (b + name))) << name;
    }
  }

  Workplace place_;
};

TEST_F(ProcessRun, ThreadsAndProcessesGiveTheSameBits) {
  const Outcome threads = place_.run(command("threads", false));
  ASSERT_EQ(threads.code, 0) << threads.err;
  const Outcome processes = place_.run(command("processes", true));
  ASSERT_EQ(processes.code, 0) << processes.out << processes.err;
  expect_same("threads", "processes");
  // The message is printed once, not by every rank.
  const std::string all = processes.out + processes.err;
  EXPECT_EQ(all.find("training starts from scratch"), all.rfind("training starts from scratch"));
}

TEST_F(ProcessRun, OneGoesOnWhereTheOtherStopped) {
  ASSERT_EQ(place_.run(command("whole", false)).code, 0);
  ASSERT_EQ(place_.run(command("mixed", false, {"--exit-interval", "4"})).code, 0);
  ASSERT_EQ(place_.run(command("mixed", true, {"--exit-interval", "8", "--async-save"})).code, 0);
  const Outcome last = place_.run(command("mixed", false));
  ASSERT_EQ(last.code, 0);
  EXPECT_NE(last.err.find("iter_0000008"), last.err.npos) << last.err;
  expect_same("whole", "mixed");
}

TEST_F(ProcessRun, AFailureThatAllHaveIsToldOnce) {
  const Outcome r = place_.run(command("bad", true, {"--lr", "-1"}));
  EXPECT_EQ(r.code, 2) << r.out << r.err;
  const std::string all = r.out + r.err;
  EXPECT_NE(all.find("rank 0: "), all.npos) << all;
  EXPECT_EQ(all.find("rank 1: "), all.npos) << all;
}

TEST_F(ProcessRun, AnotherNumberOfRanksIsRefused) {
  const Outcome r = place_.run(with(command("bad", true), {"--ranks", "3"}));
  EXPECT_EQ(r.code, 2);
  EXPECT_NE((r.out + r.err).find("--ranks is 3"), std::string::npos) << r.err;
}

TEST_F(ProcessRun, EvaluationHasOneResult) {
  const Words eval = {"eval",  "--load",     "run",   "--data-path", "data",      "--split",
                      "1,0,0", "--eval-set", "train", "--json",      "--threads", "1"};
  const Outcome one = place_.run(eval);
  ASSERT_EQ(one.code, 0) << one.err;
  Words launched = eval;
  launched.insert(launched.begin(), {"launch", "-np", "2", "--no-prefix"});
  const Outcome two = place_.run(launched);
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(one.out, two.out);
}

}  // namespace
}  // namespace megatron::testing
