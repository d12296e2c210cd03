// Messages of `train` and `plan` about runs that do not fit this machine, whatever its size, and
// about models that fit no machine. Sizes are fractions of the machine's memory.
#include <cmath>
#include <set>
#include <sstream>

#include "base/json.h"
#include "base/machine_limits.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

double machine() { return static_cast<double>(available_memory()); }

// Two layers whose f32 state, 16 bytes per parameter, takes `share` times the machine's memory.
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
    for (const Json& suggestion : memory["suggestions"].as_array())
      all += suggestion.as_string() + "\n";
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
  EXPECT_NE(all.find("; changes the result)"), all.npos) << all;
}

TEST_F(PlanRefusal, MomentsOfEightBitsIfThoseOfBf16AreTooLarge) {
  const std::string all = suggestions(model_of(1.4));
  EXPECT_EQ(all.find("--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8 (needs "), 0u) << all;
}

// The state is too large in either type alone, and fits with bf16 and narrower moments together.
TEST_F(PlanRefusal, FlagsHelpTogether) {
  const auto tokens = static_cast<int64_t>(std::sqrt(machine()) / 25 / 64) * 64;
  const std::string all = suggestions(
      with(model_of(1.02), {"--micro-batch-size", "8", "--seq-length", std::to_string(tokens)}));
  EXPECT_EQ(all.find("--micro-batch-size 1 "), 0u) << all;
  EXPECT_NE(all.find("--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 (needs "), all.npos)
      << all;
}

// Only settings that were tried are suggested: flags of Adam's moments do not apply to SGD.
TEST_F(PlanRefusal, FlagsHelpTogetherWithAnotherOptimizer) {
  const auto tokens = static_cast<int64_t>(std::sqrt(machine()) / 25 / 64) * 64;
  const Words flags =
      with(model_of(1.65), {"--micro-batch-size", "8", "--seq-length", std::to_string(tokens)});
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
                   "--seq-length", std::to_string(length), "--vocab-size", "100",
                   "--micro-batch-size", "1", "--position-embedding-type", "rope"});
  ASSERT_EQ(all.find("--seq-length "), 0u) << all;
  const int64_t shorter = std::stoll(all.substr(13));
  EXPECT_LT(shorter, length);
  EXPECT_GE(shorter, length / 64);
  EXPECT_NE(all.find("; changes the result)"), all.npos) << all;
}

TEST_F(PlanRefusal, PlanTellsOfModelsThatNoMachineHolds) {
  // 2e14 parameters; and 4 sequences of a million tokens in a model as large as Llama 3 405B. Each
  // has few layers, since every layer takes time in each plan that is tried.
  for (const Words& flags :
       {Words{"--num-layers", "16", "--hidden-size", "1048576", "--num-attention-heads", "128",
              "--seq-length", "4096", "--vocab-size", "100000", "--micro-batch-size", "1"},
        Words{"--num-layers", "8", "--hidden-size", "65536", "--num-attention-heads", "128",
              "--seq-length", "1048576", "--vocab-size", "128256", "--micro-batch-size", "4"}})
    EXPECT_EQ(suggestions(flags).find("--num-layers " + flags[1] + " "), std::string::npos);
}

// Splits flags and their values, one per element: "--bf16", "--num-layers 2".
std::set<std::string> given(const std::string& words) {
  std::set<std::string> all;
  std::istringstream in(words);
  std::string flag;
  for (std::string word; in >> word;) {
    if (word.starts_with("--")) {
      if (!flag.empty()) all.insert(flag);
      flag = word;
    } else {
      flag += " " + word;
    }
  }
  all.insert(flag);
  return all;
}

// Every suggestion differs from the run's value and fits: the test plans the printed command again.
class Suggestions : public PlanRefusal, public ::testing::WithParamInterface<std::string> {
 protected:
  static constexpr const char* kShape =
      "--num-attention-heads 16 --seq-length 2048 --micro-batch-size 4 --max-position-embeddings "
      "4096 ";
};
INSTANTIATE_TEST_SUITE_P(
    Of, Suggestions,
    ::testing::Values("--num-layers 96 --hidden-size 12288 --vocab-size 51200",
                      "--num-layers 4 --hidden-size 1024 --vocab-size 200000000",
                      "--num-layers 24 --hidden-size 2048 --vocab-size 51200 --ranks 512 "
                      "--global-batch-size 2048",
                      "--num-layers 60 --hidden-size 8192 --vocab-size 51200 --device cuda --bf16 "
                      "--recompute-activations",
                      "--num-layers 12 --hidden-size 8192 --vocab-size 51200 --device cuda --bf16 "
                      "--cpu-offloading-num-layers 1"));

TEST_P(Suggestions, AreOthersThanTheRunsOwnAndFit) {
  const std::string own = kShape + GetParam();
  Words words;
  std::istringstream in(own);
  for (std::string word; in >> word;) words.push_back(word);
  std::istringstream lines(suggestions(words));
  const std::set<std::string> before = given(own);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const size_t end = line.find(" (needs ");
    ASSERT_NE(end, line.npos) << line;
    Words suggested = with(words, {"--no-time", "--json"});
    std::istringstream flags(line.substr(0, end));
    for (std::string word; flags >> word;) suggested.push_back(word);
    for (const std::string& flag : given(line.substr(0, end)))
      EXPECT_FALSE(before.contains(flag)) << line;
    const Outcome r = run("plan", suggested);
    ASSERT_EQ(r.code, 0) << line << r.err;
    const Json memory = Json::parse(r.out)["memory"];
    if (memory["gpu"].is_null()) EXPECT_TRUE(memory["fits"].as_bool()) << line;
    else
      EXPECT_LE(memory["gpu"]["needed"].as_integer(), memory["gpu"]["bytes"].as_integer()) << line;
  }
  EXPECT_GE(count, 1);
}

// Activations of long rows are divided among ranks or computed in chunks, no further than needed.
TEST_F(PlanRefusal, LongRowsAreDividedNoFurtherThanNeeded) {
  const auto long_rows = [](const std::string& memory) {
    return Words{"--num-layers",
                 "8",
                 "--hidden-size",
                 "4096",
                 "--ffn-hidden-size",
                 "14336",
                 "--swiglu",
                 "--num-attention-heads",
                 "32",
                 "--position-embedding-type",
                 "rope",
                 "--vocab-size",
                 "32000",
                 "--seq-length",
                 "65536",
                 "--micro-batch-size",
                 "1",
                 "--global-batch-size",
                 "32",
                 "--ranks",
                 "8",
                 "--use-distributed-optimizer",
                 "--device",
                 "cuda",
                 "--bf16",
                 "--device-memory",
                 memory};
  };
  const auto fits = [&](const std::string& memory, const std::string& flag, int value) {
    const Outcome r =
        run("plan", with(long_rows(memory), {flag, std::to_string(value), "--no-time", "--json"}));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out)["memory"]["fits"].as_bool();
  };
  for (const char* memory : {"60", "54"}) {
    const std::string all = suggestions(long_rows(memory));
    for (const std::string flag : {"--context-parallel-size", "--mlp-chunks-for-training"}) {
      const size_t at = all.find(flag + " ");
      ASSERT_NE(at, all.npos) << flag << " for " << memory << " GiB is not among\n" << all;
      const int value = std::stoi(all.substr(at + flag.size() + 1));
      EXPECT_TRUE(fits(memory, flag, value)) << flag << " " << value;
      EXPECT_TRUE(value == 2 || !fits(memory, flag, value / 2)) << flag << " " << value / 2;
    }
  }
}

TEST_F(PlanRefusal, CausesAndFiguresAreNamed) {
  const auto cause = [this](const Words& flags) {
    const Outcome r = run("plan", with(flags, {"--no-time", "--json"}));
    return Json::parse(r.out)["memory"]["cause"].as_string();
  };
  EXPECT_NE(cause(model_of(3)).find("for weights, gradients and optimizer state of 2 layers"),
            std::string::npos);
  const Words large = with(model_of(0.01), {"--vocab-size", "200000000"});
  EXPECT_NE(cause(large).find("optimizer state of the vocabulary (embedding and output layer)"),
            std::string::npos)
      << cause(large);
  EXPECT_NE(suggestions(large).find("--vocab-size "), std::string::npos);
  const Words together = with(model_of(0.3), {"--ranks", "16", "--global-batch-size", "16"});
  EXPECT_NE(cause(together).find("Each of the 16 ranks on this machine needs "), std::string::npos);
  EXPECT_NE(cause(together).find("which would fit without the others"), std::string::npos)
      << cause(together);
  EXPECT_NE(suggestions(together).find("--nproc-per-node 2 (needs "), std::string::npos)
      << suggestions(together);
  const Outcome deep = run("plan", with(model_of(0.3), {"--num-layers", "48", "--no-time"}));
  EXPECT_NE(deep.out.find("    --num-layers "), std::string::npos) << deep.out;
  EXPECT_NE(deep.out.find("    --device cuda --bf16 "), std::string::npos) << deep.out;
}

// Unless given, a machine has 8 ranks with GPUs; on CPUs it has all ranks, as the settings say.
TEST_F(PlanRefusal, RanksOfAMachineAreSaid) {
  const Words words = with(
      model_of(0.001), {"--ranks", "4608", "--global-batch-size", "4608", "--no-time", "--json"});
  const auto planned = [&](const Words& more) {
    const Outcome r = run("plan", with(words, more));
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out);
  };
  const auto note = [](const Json& plan) {
    for (const Json& one : plan["derived"].as_array())
      if (one["flag"].as_string() == "nproc-per-node")
        return one["value"].as_string() + ": " + one["cause"].as_string();
    return std::string();
  };
  const Json gpus = planned({"--device", "cuda"});
  EXPECT_EQ(gpus["ranks_here"].as_integer(), 8);
  EXPECT_EQ(gpus["memory"]["gpu"]["ranks"].as_integer(), 1);
  EXPECT_TRUE(gpus["memory"]["fits"].as_bool());
  EXPECT_EQ(note(gpus), "8: as is usual for GPU machines; give the flag if yours differ");
  const Json all = planned({"--device", "cpu"});
  EXPECT_EQ(all["ranks_here"].as_integer(), 4608);
  EXPECT_EQ(note(all),
            "4608: all ranks are assumed to be on this machine; give the flag for "
            "several machines");
  EXPECT_EQ(note(planned({"--device", "cuda", "--nproc-per-node", "4"})), "");
}

// A model with so many layers that a full plan would itself take gigabytes.
TEST_F(PlanRefusal, DeepModelsArePlannedByShallowOnes) {
  const Outcome r = run("plan", {"--num-layers", "65536", "--hidden-size", "64",
                                 "--num-attention-heads", "4", "--seq-length", "32", "--vocab-size",
                                 "1000", "--micro-batch-size", "1", "--no-time", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // sanitizers use memory of their own
  EXPECT_LT(r.bytes, 1'000'000'000);
#endif
  const Json plan = Json::parse(r.out);
  EXPECT_EQ(plan["parameters"]["total"].as_integer(),
            int64_t{65536} * (12 * 64 * 64 + 13 * 64) + 1032 * 64 + 128);
  EXPECT_EQ(plan["parameters"]["by_span"].as_array().size(), 65536U + 2);
  EXPECT_FALSE(plan["memory"]["exact"].as_bool());
  const Json& rank = plan["memory"]["rank"];
  EXPECT_GE(rank["parameters"].as_integer(), 4 * plan["parameters"]["total"].as_integer());
  EXPECT_GE(rank["optimizer"].as_integer(), 8 * plan["parameters"]["total"].as_integer());
}

TEST_F(PlanRefusal, WhatCannotBeCountedIsNamed) {
  const Outcome state =
      run("plan", {"--num-layers", "65536", "--hidden-size", "1048576", "--num-attention-heads",
                   "64", "--seq-length", "32", "--vocab-size", "100", "--micro-batch-size", "1"});
  EXPECT_EQ(state.code, 2) << state.out;
  EXPECT_NE(state.err.find("exceeds the limit of plans"), state.err.npos) << state.err;
  const Outcome batch = run(
      "plan", {"--num-layers", "100", "--hidden-size", "12800", "--num-attention-heads", "100",
               "--seq-length", "268435456", "--vocab-size", "100", "--micro-batch-size", "1000"});
  EXPECT_EQ(batch.code, 2) << batch.out;
  EXPECT_NE(batch.err.find("--micro-batch-size or --seq-length"), batch.err.npos) << batch.err;
  EXPECT_EQ(batch.err.find("the machine has"), batch.err.npos) << batch.err;
}

}  // namespace
}  // namespace megatron::testing
