// Kills a run that saves often with SIGKILL at random moments and repeats its command, with the
// same or another layout, until the run is done. It repeats this for the given number of kills, and
// until a third of the kills have fallen inside a save.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "base/tolerances.h"
#include "golden/cli/process.h"

namespace megatron::testing {

// Four experts on two ranks, with routers that have states and auxiliary losses.
inline constexpr const char* kExpertRanks =
    "--num-experts 4 --moe-ffn-hidden-size 64 --expert-model-parallel-size 2 "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-aux-loss-coeff 0.01";

class KillSeries {
 public:
  // flags: added to those of a small dense model.
  KillSeries(int ranks, int kills, unsigned seed, const std::string& flags = "")
      : KillSeries({fmt::format("--ranks {} {}", ranks, flags)}, kills, seed) {}
  // Each start of the run takes the next of these layouts, cyclically. begin: the command, its data
  // and, to start from one, its model.
  KillSeries(std::vector<std::string> layouts, int kills, unsigned seed,
             std::string begin = "train --vocab-size 5000 --mock-data")
      : begin_(std::move(begin)), layouts_(std::move(layouts)), kills_(kills), random_(seed) {}

  void run() {
    ASSERT_EQ(place_.run(command("whole")).code, 0);
    const std::map<int64_t, Step> expected = steps("whole");
    ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
    int done = 0, inside = 0, resumed = 0, runs = 0;
    while (done < kills_ || inside * 3 < done) {
      const std::string folder = "run" + std::to_string(runs++);
      bool over = false;
      while (!over) {
        const bool had_one = std::filesystem::exists(place_ / (folder + "/" + kTracker));
        Background child = place_.start(command(folder));
        const bool killed = (done < kills_ || inside * 3 < done) && kill_some_time(child, folder);
        const Outcome outcome = child.wait();
        const bool resumes = outcome.err.find("resuming from") != std::string::npos ||
                             outcome.out.find("resuming from") != std::string::npos;
        ASSERT_EQ(resumes, had_one && !done_before_loading(outcome)) << outcome.err;
        resumed += resumes;
        if (killed && outcome.code == 128 + SIGKILL) {
          const bool in_save = inside_of_save(folder);
          std::printf("kill %d: after step %lld, %s\n", ++done,
                      static_cast<long long>(last_step(folder)),
                      in_save ? "inside a save" : "between saves");
          inside += in_save;
          continue;
        }
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        over = true;
      }
      compare(folder, expected);
    }
    std::printf("%d kills, %d inside a save, %d resumes, %d runs; %s\n", done, inside, resumed,
                runs, layouts_[0].c_str());
    EXPECT_GE(resumed, done);
  }

 private:
  static constexpr int kSteps = 24;
  static constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

  struct Step {
    double loss = 0, norm = 0;
    bool operator==(const Step&) const = default;
  };

  std::vector<std::string> command(const std::string& folder) {
    std::vector<std::string> flags;
    const bool has_model = begin_.find("--model ") != begin_.npos,
               has_layers = begin_.find("--hybrid-layer-pattern ") != begin_.npos;
    std::istringstream words(
        begin_ + (has_model || has_layers ? "" : " --num-layers 2") +
        (has_model ? "" : " --hidden-size 128 --num-attention-heads 4") +
        " --seq-length 32 --micro-batch-size 2 --global-batch-size 4 --lr 1e-3 "
        "--lr-decay-style cosine --train-iters 24 --save-interval 2 --save-keep 3 --log-interval 1 "
        "--threads 1 --save " +
        folder + " --load " + folder + " " + layouts_[starts_++ % layouts_.size()]);
    for (std::string word; words >> word;) flags.push_back(word);
    return flags;
  }

  // Returns true if the child was killed before it ended by itself. Waits for the first checkpoint,
  // so that every resume has one; after that, a random half of the kills wait for the beginning of
  // a save.
  bool kill_some_time(Background& child, const std::string& folder) {
    const auto wait_until = [&](auto&& condition) {
      while (!child.ended()) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      return false;
    };
    const int64_t before = last_step(folder);
    const auto tracked = [&] {
      return std::filesystem::exists(place_ / (folder + "/" + kTracker));
    };
    if (!wait_until([&] { return tracked() && last_step(folder) > before; })) return false;
    std::uniform_int_distribution<int> delay(0, random_() % 2 == 0 ? 15000 : 60000);
    if (random_() % 2 == 0 && !wait_until([&] { return inside_of_save(folder); })) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(delay(random_)));
    if (child.ended()) return false;
    child.kill(SIGKILL);
    return true;
  }

  // True if there is a directory that is incomplete, or complete but not yet named by the tracker.
  bool inside_of_save(const std::string& folder) const {
    int64_t newest = -1;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(place_ / folder, error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("iter_")) continue;
      if (name.ends_with(".tmp")) return true;
      newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
    }
    const std::string tracker = place_ / (folder + "/" + kTracker);
    if (!std::filesystem::exists(tracker)) return newest >= 0;
    return newest > std::stoll(read_file(tracker));
  }

  static bool done_before_loading(const Outcome& outcome) {
    return outcome.code == 128 + SIGKILL && outcome.err.find("plan:") == std::string::npos;
  }

  // Loss and gradient norm of each step from the log; for a repeated step, the last entry counts.
  std::map<int64_t, Step> steps(const std::string& folder) const {
    std::map<int64_t, Step> found;
    std::istringstream lines(read_file(place_ / (folder + "/log.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const Json record = Json::parse(line);
      if (record["type"].as_string() != "step") continue;
      const bool is_new =
          found
              .emplace(record["iteration"].as_integer(),
                       Step{record["loss"].as_number(), record["gradient_norm"].as_number()})
              .second;
      EXPECT_TRUE(is_new) << "step " << record["iteration"].dump() << " is logged twice";
    }
    return found;
  }

  int64_t last_step(const std::string& folder) const {
    const std::string file = place_ / (folder + "/log.jsonl");
    if (!std::filesystem::exists(file)) return 0;
    const std::string text = read_file(file);
    const size_t at = text.rfind("\"type\": \"step\"");
    if (at == text.npos) return 0;
    const size_t number = text.find("\"iteration\":", at);
    return number == text.npos ? 0 : std::atoll(text.c_str() + number + 12);
  }

  // Runs with different layouts agree within rounding; with one layout the files are equal too.
  void compare(const std::string& folder, const std::map<int64_t, Step>& expected) const {
    const std::map<int64_t, Step> found = steps(folder);
    EXPECT_EQ(read_file(place_ / (folder + "/" + kTracker)), "24");
    if (layouts_.size() > 1) {
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [number, step] : found) {
        const double loss = expected.at(number).loss;
        EXPECT_NEAR(step.loss, loss, tolerance::kLayoutFp32 * loss)
            << folder << ", step " << number;
      }
      return;
    }
    EXPECT_EQ(found, expected) << folder;
    const std::string last = "/iter_0000024";
    for (const auto& entry : std::filesystem::directory_iterator(place_ / ("whole" + last))) {
      const std::string name = "/" + entry.path().filename().string();
      EXPECT_TRUE(read_file(place_ / ("whole" + last + name)) ==
                  read_file(place_ / (folder + last + name)))
          << folder << last << name << " differs from that of the run that was never killed";
    }
  }

  Workplace place_;
  const std::string begin_;
  const std::vector<std::string> layouts_;
  size_t starts_ = 0;
  int kills_;
  std::mt19937 random_;
};

}  // namespace megatron::testing
