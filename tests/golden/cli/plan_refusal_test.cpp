// Runs that do not fit this machine, whatever it has: what `train` and `plan` say of them, and
// models that no machine has room for. Sizes are shares of the machine's memory.
#include <cmath>
#include <sstream>

#include "base/json.h"
#include "base/machine_limits.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

double machine() { return static_cast<double>(available_memory()); }

// Two layers with f32 state of 16 bytes a parameter, of so many times the machine's memory.
Words model_of(double share) {
  const auto hidden = static_cast<int64_t>(std::sqrt(share * machine() / 16 / 24) / 64) * 64;
  return {"--num-layers",
          "2",
          "--hidden-size",
          std::to_string(hidden),
          "--num-attention-heads",
          "4",
          "--seq-length",
          "32",
          "--vocab-size",
          "100",
          "--micro-batch-size",
          "1",
          "--mock-data",
          "--lr",
          "1e-3",
          "--train-iters",
          "1"};
}

class PlanRefusal : public ::testing::Test {
 protected:
  Outcome run(const std::string& command, const Words& flags) {
    return place_.run(with({command}, flags));
  }
  std::string suggestions(const Words& flags) {
    const Outcome r = run("plan", with(flags, {"--no-time", "--json"}));
    EXPECT_EQ(r.code, 0) << r.err;
    const Json memory = Json::parse(r.out)["memory"];
    EXPECT_FALSE(memory["fits"].as_bool());
    std::string all;
    for (const Json& suggestion : memory["suggestions"].as_array()) all += suggestion.as_string() + "\n";
    return all;
  }

  Workplace place_;
};

TEST_F(PlanRefusal, TrainPrintsThePlanAndWhatWouldFit) {
  const Outcome r = run("train", model_of(1.15));
  EXPECT_EQ(r.code, 2) << r.out;
  const std::string all = r.out + r.err;
  const size_t plan = all.find("plan: "), verdict = all.find("does NOT fit"),
               refused = all.find("What would fit:"),
               suggestion = all.find("\n  --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 (needs ");
  EXPECT_LT(plan, verdict) << all;
  EXPECT_LT(verdict, refused) << all;
  EXPECT_LT(refused, suggestion) << all;
  EXPECT_NE(suggestion, all.npos) << all;
}

TEST_F(PlanRefusal, OptimizersWithLessStateGiveAnotherResult) {
  const std::string all = suggestions(model_of(1.7));
  EXPECT_EQ(all.find("--optimizer sgd --sgd-momentum 0 (needs "), 0u) << all;
  EXPECT_NE(all.find("; gives another result)"), all.npos) << all;
}

// What is held of a parameter is too much in either type, and less with moments in bf16.
TEST_F(PlanRefusal, FlagsHelpTogether) {
  const auto tokens = static_cast<int64_t>(std::sqrt(machine()) / 25 / 64) * 64;
  const std::string all = suggestions(
      with(model_of(1.02), {"--micro-batch-size", "8", "--seq-length", std::to_string(tokens)}));
  EXPECT_EQ(all.find("--micro-batch-size 1 "), 0u) << all;
  EXPECT_NE(all.find("--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 (needs "), all.npos)
      << all;
}

// What is printed is what was tried: moments of Adam's are no flags of SGD.
TEST_F(PlanRefusal, FlagsHelpTogetherWithAnotherOptimizer) {
  const auto tokens = static_cast<int64_t>(std::sqrt(machine()) / 25 / 64) * 64;
  const Words flags =
      with(model_of(1.5), {"--micro-batch-size", "8", "--seq-length", std::to_string(tokens)});
  const std::string all = suggestions(flags);
  const size_t end = all.find(" (needs ");
  ASSERT_NE(end, all.npos) << all;
  ASSERT_TRUE(all.starts_with("--micro-batch-size 1 ")) << all;
  EXPECT_NE(all.find("--optimizer sgd --sgd-momentum 0 (needs "), all.npos) << all;
  Words suggested = with(flags, {"--no-time", "--json"});
  std::istringstream words(all.substr(0, end));
  for (std::string word; words >> word;) suggested.push_back(word);
  const Outcome r = run("plan", suggested);
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(Json::parse(r.out)["memory"]["fits"].as_bool());
}

TEST_F(PlanRefusal, ShorterSequencesGiveAnotherResult) {
  const auto length = static_cast<int64_t>(machine() / 1600 / 64) * 64;
  const std::string all =
      suggestions({"--num-layers", "1", "--hidden-size", "1024", "--num-attention-heads", "8",
                "--seq-length", std::to_string(length), "--vocab-size", "100", "--micro-batch-size",
                "1", "--position-embedding-type", "rope"});
  ASSERT_EQ(all.find("--seq-length "), 0u) << all;
  const int64_t shorter = std::stoll(all.substr(13));
  EXPECT_LT(shorter, length);
  EXPECT_GE(shorter, length / 64);
  EXPECT_NE(all.find("; gives another result)"), all.npos) << all;
}

TEST_F(PlanRefusal, PlanTellsOfModelsThatNoMachineHolds) {
  // Of 2e14 parameters; and 4 sequences of a million tokens in a model as large as Llama 3 405B.
  for (const Words& flags :
       {Words{"--num-layers", "100", "--hidden-size", "409600", "--num-attention-heads", "128",
              "--seq-length", "4096", "--vocab-size", "100000", "--micro-batch-size", "1"},
        Words{"--num-layers", "126", "--hidden-size", "16384", "--num-attention-heads", "128",
              "--seq-length", "1048576", "--vocab-size", "128256", "--micro-batch-size", "4"}})
    EXPECT_EQ(suggestions(flags).find("a smaller model (--num-layers "), 0u);
}

TEST_F(PlanRefusal, WhatCannotBeCountedIsNamed) {
  const Outcome state =
      run("plan", {"--num-layers", "65536", "--hidden-size", "1048576", "--num-attention-heads",
                   "64", "--seq-length", "32", "--vocab-size", "100", "--micro-batch-size", "1"});
  EXPECT_EQ(state.code, 2) << state.out;
  EXPECT_NE(state.err.find("what can be counted ends at"), state.err.npos) << state.err;
  const Outcome batch = run(
      "plan", {"--num-layers", "100", "--hidden-size", "12800", "--num-attention-heads", "100",
               "--seq-length", "268435456", "--vocab-size", "100", "--micro-batch-size", "1000"});
  EXPECT_EQ(batch.code, 2) << batch.out;
  EXPECT_NE(batch.err.find("--micro-batch-size or --seq-length"), batch.err.npos) << batch.err;
  EXPECT_EQ(batch.err.find("the machine has"), batch.err.npos) << batch.err;
}

}  // namespace
}  // namespace megatron::testing
