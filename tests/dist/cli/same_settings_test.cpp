// Ranks that start with different settings refuse to run, over TCP and under mpirun.
#include <algorithm>
#include <filesystem>

#include "dist/cli/rank_processes.h"
#include "golden/cli/tiny_run.h"
#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

class SameSettings : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    make_tiny_run(*place_);
    fs::create_directory(*place_ / "copy");
    fs::copy(*place_ / "data.bin", *place_ / "copy/other.bin");
    fs::copy(*place_ / "data.idx", *place_ / "copy/other.idx");
    fs::copy(vectors("indexed/preprocess/tokenizer_bpe2k"), *place_ / "tokenizer");
    fs::copy(*place_ / "data.idx", *place_ / "changed.idx");
    std::string bin = read_file(*place_ / "data.bin");
    std::swap(bin[0], bin[2]);
    std::swap(bin[1], bin[3]);
    ASSERT_NE(bin, read_file(*place_ / "data.bin"));
    write_file(*place_ / "changed.bin", bin);
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }
  // A run on two processes.
  static Words train(const Words& more = {}) { return with(tiny_train(3, 2), more); }
  // The same run with another value of a flag.
  static Words other(Words run, const std::string& flag, const std::string& value) {
    *(std::ranges::find(run, flag) + 1) = value;
    return run;
  }
  static void expect_refused(const std::vector<Words>& ranks, const std::string& text) {
    const auto processes = over_tcp(*place_, ranks);
    EXPECT_EQ(count(processes[0].text, text), 1u) << text << " in:\n" << processes[0].text;
    for (const Launched& process : processes) EXPECT_EQ(process.code, 2) << process.text;
    if (!has_mpi()) return;
    const Launched mpi = over_mpi(*place_, ranks);
    EXPECT_EQ(mpi.code, 2) << mpi.text;
    EXPECT_EQ(count(mpi.text, text), 1u) << text << " in:\n" << mpi.text;
  }

  static Workplace* place_;
};
Workplace* SameSettings::place_ = nullptr;

TEST_F(SameSettings, ValuesThatDifferAreNamed) {
  expect_refused({train(), train({"--lr", "2e-3"}), train()},
                 "error rank 0: --lr differs between ranks: 0.001 on ranks 0, 2; 0.002 on rank 1; "
                 "start all ranks with the same settings\n");
  expect_refused({train(), train({"--train-iters", "4", "--seed", "1"})},
                 "--train-iters differs between ranks: 3 on rank 0; 4 on rank 1. --seed differs "
                 "between ranks: 1234 on rank 0; 1 on rank 1;");
}

TEST_F(SameSettings, LayoutsAndCommandsThatDifferAreNoHang) {
  expect_refused({train(), train({"--tensor-model-parallel-size", "2"})},
                 "--tensor-model-parallel-size differs between ranks: 1 on rank 0; 2 on rank 1;");
  expect_refused({words("eval --load run --input data.idx"), train()}, "eval on rank 0; megatron ");
}

// The others do not wait for a process that has ended because of an error in its flags.
TEST_F(SameSettings, ARankThatCannotReadItsFlagsIsNoHang) {
  for (const size_t failed : {size_t{0}, size_t{1}}) {
    std::vector<Words> ranks = {train(), train(), train()};
    ranks[failed] = train({"--no-such-flag"});
    const auto processes = over_tcp(*place_, ranks);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const std::string& text = processes[r].text;
      EXPECT_EQ(processes[r].code, 2) << text;
      EXPECT_EQ(count(text, "there is no flag --no-such-flag"), 1u) << text;
      EXPECT_EQ(count(text, fmt::format("rank {} failed before the ranks had connected: ", failed)),
                r == failed ? 0u : 1u)
          << text;
    }
  }
  const Words wrong = words("generate --no-such-flag");
  for (const Launched& process : over_tcp(*place_, {wrong, wrong})) {
    EXPECT_EQ(process.code, 2) << process.text;
    EXPECT_EQ(count(process.text, " error "), 1u) << process.text;
  }
}

TEST_F(SameSettings, DataAndCheckpointsAreComparedByContent) {
  expect_refused({train(), other(train(), "--data-path", "changed")},
                 "--data-path differs between ranks: data (content ");
  expect_refused({train({"--load", "run"}), train({"--load", "nowhere"})},
                 "--load differs between ranks: run (iteration 2 of 1, 2, content ");
}

TEST_F(SameSettings, CommandsThatReadAModelCompareTheirsToo) {
  for (const char* command :
       {"eval --load run --input data.idx", "generate --load run --prompt a", "serve --load run"}) {
    const auto processes = over_tcp(*place_, {words(command), with(words(command), {"--bf16"})});
    EXPECT_TRUE(has(processes[0].text,
                    "--bf16 differs between ranks: false on rank 0; true on rank 1; start"))
        << processes[0].text;
    EXPECT_EQ(processes[1].code, 2) << command;
  }
}

// A flag that is missing on one rank is reported before that rank fails alone.
TEST_F(SameSettings, AFlagThatIsNeededAndMissingOnOneRankIsNamed) {
  Words less = train();
  less.erase(std::ranges::find(less, "--lr"), std::ranges::find(less, "--lr") + 2);
  const auto processes = over_tcp(*place_, {train(), less});
  EXPECT_TRUE(has(processes[0].text, "--lr differs between ranks: 0.001 on rank 0; not given on"))
      << processes[0].text;
}

TEST_F(SameSettings, WhatMayDifferDoes) {
  Words moved = train({"--load", "./run", "--log-jsonl", "second.jsonl", "--data-cache-path",
                       "cache", "--no-mmap-bin-files"});
  for (const auto& [flag, value] :
       {std::pair{"--data-path", "copy/other"}, std::pair{"--tokenizer-model", "tokenizer"},
        std::pair{"--threads", "2"}})
    moved = other(moved, flag, value);
  const auto processes =
      over_tcp(*place_, {train({"--load", "run", "--log-jsonl", "first.jsonl"}), moved});
  for (const Launched& process : processes) EXPECT_EQ(process.code, 0) << process.text;
  EXPECT_TRUE(has(processes[0].text, "resuming from")) << processes[0].text;
}

}  // namespace
}  // namespace megatron::testing
