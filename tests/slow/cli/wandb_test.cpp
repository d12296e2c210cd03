// tools/wandb_import with PyPI's wandb: imports a training log as an offline run and reads it back.
#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>

#include "base/json.h"
#include "golden/cli/process.h"

namespace megatron::cli {
namespace {

using testing::Outcome;
using testing::Workplace;

const std::string kRoot = std::string(MEGATRON_TEST_SOURCES) + "/..";

struct Ended {
  int code;
  std::string text;
};

Ended shell(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  Ended ended{0, ""};
  for (int c; (c = std::fgetc(pipe)) != EOF;) ended.text += static_cast<char>(c);
  ended.code = pclose(pipe);
  return ended;
}

class WeightsAndBiases : public ::testing::Test {
 protected:
  void SetUp() override {
    python_ = place_ / "venv/bin/python";
    const Ended made =
        shell("python3 -m venv " + place_ / "venv" + " && " + python_ + " -m pip install -q wandb");
    if (made.code != 0)
      GTEST_SKIP() << "python3 -m venv and pip install wandb did not succeed here (they need "
                      "python3-venv and PyPI): "
                   << made.text;
  }
  Ended import(const std::string& arguments) {
    return shell("cd " + place_.path() + " && HOME=" + place_.path() + " " + python_ + " " + kRoot +
                 "/tools/wandb_import " + arguments);
  }
  // Returns the only run below a folder, as lines of tests/slow/cli/wandb_read.py.
  std::vector<Json> run_in(const std::string& folder) {
    const Ended read = shell(python_ + " " + kRoot + "/tests/slow/cli/wandb_read.py " +
                             place_ / folder + "/wandb/offline-run-*/*.wandb");
    EXPECT_EQ(read.code, 0) << read.text;
    std::vector<Json> all;
    std::istringstream lines(read.text);
    for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
    return all;
  }

  const Workplace place_;
  std::string python_;
};

TEST_F(WeightsAndBiases, AnOfflineRunHoldsWhatTheLogDoes) {
  const std::vector<std::string> command = {"train",
                                            "--num-layers",
                                            "1",
                                            "--hidden-size",
                                            "16",
                                            "--lr",
                                            "1e-2",
                                            "--num-attention-heads",
                                            "2",
                                            "--vocab-size",
                                            "64",
                                            "--seq-length",
                                            "16",
                                            "--micro-batch-size",
                                            "1",
                                            "--train-iters",
                                            "4",
                                            "--eval-interval",
                                            "2",
                                            "--eval-iters",
                                            "1",
                                            "--log-interval",
                                            "1",
                                            "--mock-data",
                                            "--log-num-zeros-in-grad",
                                            "--timing-log-level",
                                            "1",
                                            "--save",
                                            "run",
                                            "--wandb-project",
                                            "from the training",
                                            "--wandb-exp-name",
                                            "first",
                                            "--wandb-save-dir",
                                            "board"};
  const Outcome trained = place_.run(command);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Ended imported = import("run");
  ASSERT_EQ(imported.code, 0) << imported.text;
  EXPECT_NE(imported.text.find("wandb sync board/wandb/offline-run-"), std::string::npos)
      << imported.text;
  std::map<int64_t, Json> history;
  std::string id;
  for (const Json& record : run_in("board")) {
    if (record.contains("run")) {
      const Json& run = record["run"];
      id = run["id"].as_string();
      EXPECT_EQ(run["project"].as_string(), "from the training");
      EXPECT_EQ(run["name"].as_string(), "first");
      EXPECT_EQ(run["config"]["flags"]["lr"].as_string(), "0.01");
      EXPECT_EQ(run["config"]["model"]["num-layers"].as_integer(), 1);
    } else if (record.contains("history")) {
      history[record["history"]["iteration"].as_integer()] = record["history"];
    }
  }
  ASSERT_EQ(history.size(), 4u);
  std::istringstream lines(read_file(place_ / "run/log.jsonl"));
  int compared = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json logged = Json::parse(line);
    if (logged["type"].as_string() == "validation") {
      const std::string set = logged["set"].as_string();
      const std::string name = "lm loss validation" + (set == "valid" ? "" : " " + set);
      EXPECT_EQ(history[logged["iteration"].as_integer()][name].as_number(),
                logged["loss"].as_number());
      ++compared;
    }
    if (logged["type"].as_string() != "step") continue;
    const Json& point = history[logged["iteration"].as_integer()];
    for (const auto& [name, key] : {std::pair<const char*, const char*>{"lm loss", "loss"},
                                    {"learning-rate", "learning_rate"},
                                    {"grad-norm", "gradient_norm"},
                                    {"num-zeros", "zero_gradients"},
                                    {"iteration-time", "seconds"},
                                    {"consumed-samples", "consumed_samples"},
                                    {"_timestamp", "time"}})
      EXPECT_EQ(point[name].as_number(), logged[key].as_number()) << name;
    EXPECT_EQ(point["forward-backward-time"].as_number(),
              logged["timers"]["forward-backward"]["most"].as_number());
    ++compared;
  }
  EXPECT_EQ(compared, 7);  // 4 steps, 2 validations, the test set
  const Ended listed = shell("HOME=" + place_.path() + " " + python_ + " -m wandb sync --dry-run " +
                             place_ / "board/wandb/offline-run-*");
  EXPECT_EQ(listed.code, 0) << listed.text;
  EXPECT_NE(listed.text.find("1 run"), std::string::npos) << listed.text;

  // The import's flags override the log's, and the run stays the same.
  const Ended again = import("--project mine --entity me --dir other run/log.jsonl");
  ASSERT_EQ(again.code, 0) << again.text;
  const Json run = run_in("other").front()["run"];
  EXPECT_EQ(run["id"].as_string(), id);
  EXPECT_EQ(run["project"].as_string(), "mine");
  EXPECT_EQ(run["entity"].as_string(), "me");
}

// The file is refused before the package is imported.
TEST(WandbImport, WhatIsNoLogIsRefused) {
  const Workplace place;
  write_file(place / "text", "no log\n");
  const std::string program =
      "cd " + place.path() + " && python3 " + kRoot + "/tools/wandb_import ";
  const Ended foreign = shell(program + "text");
  EXPECT_NE(foreign.code, 0);
  EXPECT_NE(foreign.text.find("line 1 of text is not a line of a run's log"), std::string::npos)
      << foreign.text;
  EXPECT_NE(shell(program + "none").code, 0);
}

}  // namespace
}  // namespace megatron::cli
