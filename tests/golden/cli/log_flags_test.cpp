// Flags that log more about a run: zeros among the gradients, times of a step's parts, progress.txt
// and files for Weights & Biases.
#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/options.h"
#include "golden/cli/process.h"
#include "text.h"
#include "training/trainer.h"

namespace megatron::cli {
namespace {

using testing::has;

using testing::Workplace;

struct Trained {
  std::string printed;
  std::vector<Json> records;  // records of log.jsonl
  const Json& step(size_t n) const {
    for (const Json& record : records)
      if (record["type"].as_string() == "step" && n-- == 0) return record;
    throw Error("no such step");
  }
};

// A run of three steps of a tiny Llama.
Trained train(const Workplace& place, const std::string& more) {
  std::istringstream words(
      "--num-layers 2 --hidden-size 16 --num-attention-heads 4 --swiglu --normalization RMSNorm "
      "--disable-bias-linear --seq-length 8 "
      "--untie-embeddings-and-output-weights --position-embedding-type rope "
      "--micro-batch-size 1 --global-batch-size 4 --train-iters 3 --lr 1e-2 --vocab-size 63 "
      "--mock-data --threads 1 --log-interval 1 --hidden-dropout 0 --attention-dropout 0 "
      "--log-jsonl " +
      place / "log.jsonl" + " " + more);
  Arguments arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  std::vector<std::string> notes;
  parse_training("train", "", fields, arguments, notes);
  Trained run;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  std::string failure;
  try {
    training::TrainHooks hooks;
    hooks.peak = 1e12;
    training::train(settings, hooks);
  } catch (const Error& error) {
    failure = error.what();
  }
  run.printed = ::testing::internal::GetCapturedStdout();
  run.printed += ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(failure, "");
  std::istringstream lines(read_file(place / "log.jsonl"));
  for (std::string line; std::getline(lines, line);) run.records.push_back(Json::parse(line));
  std::filesystem::remove(place / "log.jsonl");
  return run;
}

// Embedding rows of tokens in no sample have zero gradients; their count is the same on any layout.
TEST(LogFlags, ZerosAmongGradientsAreCountedOnce) {
  const Workplace place;
  const Trained alone = train(place, "--log-num-zeros-in-grad");
  std::vector<int64_t> zeros;
  for (size_t i = 0; i < 3; ++i) zeros.push_back(alone.step(i)["zero_gradients"].as_integer());
  for (const int64_t n : zeros) {
    EXPECT_GE(n, (63 - 4 * 8) * 16);  // tokens of a step
    EXPECT_LT(n, 63 * 16);
    EXPECT_EQ(n % 16, 0);
  }
  EXPECT_TRUE(has(alone.printed, fmt::format(" | {} zeros", zeros[0]))) << alone.printed;
  for (const char* layout :
       {"--ranks 2", "--ranks 2 --use-distributed-optimizer",
        "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
        "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"}) {
    const Trained run =
        train(place, std::string("--log-num-zeros-in-grad --log-format megatron ") + layout);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(run.step(i)["zero_gradients"].as_integer(), zeros[i]) << layout;
    EXPECT_TRUE(has(run.printed, fmt::format("num zeros: {} |", zeros[0]))) << run.printed;
  }
  EXPECT_FALSE(train(place, "").step(0).contains("zero_gradients"));
}

TEST(LogFlags, TimesOfTheStepsPartsOverTheRanks) {
  const Workplace place;
  const Trained plain = train(place, "--ranks 2");
  EXPECT_FALSE(plain.step(0).contains("timers"));
  const Trained run = train(place, "--ranks 2 --timing-log-level 2 --timing-log-option all");
  for (size_t i = 0; i < 3; ++i) {
    const Json& step = run.step(i);
    EXPECT_EQ(step["loss"].as_number(), plain.step(i)["loss"].as_number()) << "no bit changes";
    const Json& timers = step["timers"];
    EXPECT_EQ(timers.as_object().size(), 8u);
    double parts = 0;
    for (const auto& [name, timer] : timers.as_object()) {
      const double least = timer["least"].as_number(), most = timer["most"].as_number();
      ASSERT_EQ(timer["ranks"].as_array().size(), 2u);
      for (const Json& rank : timer["ranks"].as_array()) {
        EXPECT_GE(rank.as_number(), least);
        EXPECT_LE(rank.as_number(), most);
      }
      if (name == "forward-backward" || name == "all-grads-sync" || name == "optimizer")
        parts += least;
    }
    EXPECT_GT(timers["forward-compute"]["least"].as_number(), 0);
    EXPECT_GT(timers["backward-compute"]["least"].as_number(), 0);
    EXPECT_LE(timers["forward-compute"]["ranks"].as_array()[0].as_number() +
                  timers["backward-compute"]["ranks"].as_array()[0].as_number(),
              timers["forward-backward"]["ranks"].as_array()[0].as_number());
    EXPECT_GT(parts, 0);
    EXPECT_LE(parts, step["seconds"].as_number());
  }
  EXPECT_TRUE(has(run.printed, "\ntimes across ranks (ms):\n  forward-backward:\n     rank  0: "));
  const Trained two = train(place, "--ranks 2 --timing-log-level 1");
  EXPECT_EQ(two.step(0)["timers"].as_object().size(), 5u);
  EXPECT_TRUE(has(two.printed,
                  "\n(min, max) time across ranks (ms):\n    forward-backward "
                  "...............................: ("))
      << two.printed;
  const Trained most =
      train(place, "--timing-log-level 1 --timing-log-option max --log-interval 3");
  EXPECT_TRUE(has(most.printed, "\nmax time across ranks (ms):\n    forward-backward "));
  EXPECT_TRUE(most.step(1).contains("timers"));
}

TEST(LogFlags, ProgressOfAllJobs) {
  const Workplace place;
  const std::string flags =
      "--log-progress --save-interval 2 --save " + place / "run" + " --load " + place / "run";
  train(place, flags);
  train(place, flags + " --train-iters 5 --override-opt-param-scheduler");
  std::istringstream lines(read_file(place / "run/progress.txt"));
  std::vector<std::string> kinds;
  std::vector<double> tokens;
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, '\t');) fields.push_back(cell);
    ASSERT_GE(fields.size(), 4u) << line;
    EXPECT_EQ(fields[0].size(), std::string("2026-01-31 12:00:00").size());
    EXPECT_TRUE(fields[1].starts_with("Job ID: ")) << line;
    EXPECT_EQ(fields[2], "# GPUs: 1");
    kinds.push_back(fields[3]);
    if (fields[3] == "Starting job") continue;
    ASSERT_EQ(fields.size(), 9u) << line;
    kinds.back() = fields[4];
    EXPECT_TRUE(fields[5].starts_with("Job throughput: ") && fields[5].ends_with(" TFLOP/s/GPU"));
    EXPECT_TRUE(fields[6].starts_with("Cumulative throughput: ")) << line;
    EXPECT_TRUE(fields[7].starts_with("Floating-point operations: ")) << line;
    EXPECT_TRUE(fields[8].starts_with("Tokens (in billions): ")) << line;
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"Starting job", "Iteration: 2", "Iteration: 3",
                                             "Starting job", "Iteration: 4", "Iteration: 5"}));
}

TEST(LogFlags, WhatIsForWeightsAndBiasesIsKeptInTheLog) {
  const Workplace place;
  const Trained run = train(place,
                            "--wandb-project p --wandb-exp-name n --wandb-entity e "
                            "--wandb-save-dir d");
  const Json& flags = run.records.at(0)["flags"];
  EXPECT_EQ(flags["wandb-project"].as_string(), "p");
  EXPECT_EQ(flags["wandb-exp-name"].as_string(), "n");
  EXPECT_EQ(flags["wandb-entity"].as_string(), "e");
  EXPECT_EQ(flags["wandb-save-dir"].as_string(), "d");
  EXPECT_TRUE(has(run.printed, "--wandb-project p")) << run.printed;
  EXPECT_TRUE(has(run.printed, "tools/wandb_import")) << run.printed;
}

}  // namespace
}  // namespace megatron::cli
