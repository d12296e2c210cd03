// --profile: the traces of whole runs.
#include "training/profile/profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "comm/threads.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

struct Event {
  std::string name, track;
  double begin, end;
  const Json* arguments;
};

// A trace parsed from its file.
struct Trace {
  explicit Trace(const std::string& path) : json(Json::read(path)) {
    std::map<int64_t, std::string> tracks;
    for (const Json& e : json["traceEvents"].as_array()) {
      pids.insert(e["pid"].as_integer());
      const int64_t thread = e["tid"].as_integer();
      if (e["ph"].as_string() == "M") {
        if (e["name"].as_string() == "thread_name") tracks[thread] = e["args"]["name"].as_string();
        if (e["name"].as_string() == "process_name") process = e["args"]["name"].as_string();
        continue;
      }
      EXPECT_EQ(e["ph"].as_string(), "X");
      EXPECT_EQ(e["cat"].as_string(), tracks.at(thread));
      const double begin = e["ts"].as_number(), lasts = e["dur"].as_number();
      EXPECT_GE(begin, 0);
      EXPECT_GE(lasts, 0);
      events.push_back(
          {e["name"].as_string(), tracks.at(thread), begin, begin + lasts, &e["args"]});
    }
  }
  std::vector<Event> of(const std::string& track) const {
    std::vector<Event> found;
    for (const Event& e : events)
      if (e.track == track) found.push_back(e);
    return found;
  }
  std::set<std::string> names(const std::string& track) const {
    std::set<std::string> found;
    for (const Event& e : of(track)) found.insert(e.name);
    return found;
  }
  int count(const std::string& track, const std::string& name) const {
    int n = 0;
    for (const Event& e : of(track)) n += e.name == name;
    return n;
  }

  Json json;
  std::vector<Event> events;
  std::set<int64_t> pids;
  std::string process;
};

// Events of a track are nested or disjoint. Times are written in thousandths of a microsecond.
void expect_nested(const std::vector<Event>& events) {
  std::vector<Event> open;
  double last = 0;
  for (const Event& e : events) {
    EXPECT_GE(e.begin, last) << e.name;
    last = e.begin;
    while (!open.empty() && open.back().end <= e.begin + 1e-6) open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(e.end, open.back().end + 1e-6) << e.name << " in " << open.back().name;
    }
    open.push_back(e);
  }
}

settings::TrainSettings profiled(const std::string& folder) {
  settings::TrainSettings s = tiny_gpt2();
  s.shape.hidden_dropout = s.shape.attention_dropout = 0.1;
  s.recompute.granularity = "full";
  s.runtime.ranks = 2;
  s.run.eval_interval = 2;
  s.run.eval_iters = 1;
  s.checkpoint.save = folder + "/save";
  s.checkpoint.save_interval = 3;
  s.profile.profile = true;
  s.profile.step_start = 1;
  s.profile.step_end = 3;
  s.profile.ranks = {"0", "1"};
  return s;
}

TEST(Profile, HoldsAllThatHappensInItsStepsAndNoMore) {
  const TemporaryDirectory folder;
  train(profiled(folder / ""));
  for (const int rank : {0, 1}) {
    const Trace trace(fmt::format("{}/trace-rank{}-steps-2-3.json", folder / "save", rank));
    EXPECT_EQ(trace.pids, std::set<int64_t>{rank});
    EXPECT_EQ(trace.process, fmt::format("rank {}", rank));
    for (const char* track : {"steps", "data", "layers", "kernels", "communication"})
      expect_nested(trace.of(track));

    std::vector<Event> steps;
    for (const Event& e : trace.of("steps"))
      if (e.name == "step") steps.push_back(e);
    ASSERT_EQ(steps.size(), 2);
    EXPECT_EQ((*steps[0].arguments)["iteration"].as_integer(), 2);
    EXPECT_EQ((*steps[1].arguments)["iteration"].as_integer(), 3);
    EXPECT_EQ(trace.names("steps"),
              (std::set<std::string>{"step", "forward and backward", "gradient norm", "update",
                                     "validation", "save"}));
    EXPECT_EQ(trace.count("data", "wait for data"), 2);

    // Each rank and step has two micro-batches.
    for (const char* pass : {"forward", "backward", "recompute"})
      EXPECT_EQ(trace.count("layers", fmt::format("{} layers.1", pass)), 4) << pass;
    EXPECT_EQ(trace.count("layers", "forward embedding"), 4);
    EXPECT_EQ(trace.count("layers", "backward head"), 4);
    EXPECT_EQ((*trace.of("layers")[0].arguments)["micro_batch"].as_integer(), 0);

    EXPECT_EQ(trace.count("communication", "all_reduce: gradients, bucket 0"), 2);
    for (const Event& e : trace.of("communication")) {
      if (e.name != "all_reduce: gradients, bucket 0") continue;
      EXPECT_EQ((*e.arguments)["ranks"].as_integer(), 2);
      EXPECT_GT((*e.arguments)["bytes"].as_integer(), 4 * 97 * 32);
      EXPECT_EQ((*e.arguments)["sent bytes"].as_number(), (*e.arguments)["bytes"].as_number());
    }
    for (const Event& e : trace.of("kernels"))
      EXPECT_TRUE(e.begin >= steps[0].begin) << "a kernel before the first traced step";
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "save/iter_0000003"));
}

TEST(Profile, KernelsTellShapesWorkAndRates) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = profiled(folder / "");
  s.precision.bf16 = true;
  train(s);
  const Trace trace(folder / "save/trace-rank0-steps-2-3.json");
  double flops = 0;
  bool seen = false;
  for (const Event& e : trace.of("kernels")) {
    const Json& a = *e.arguments;
    flops += a["flops"].as_number();
    EXPECT_GT(a["bytes"].as_number(), 0) << e.name;
    if (e.end > e.begin) {
      EXPECT_NEAR(a["GB/s"].as_number(), a["bytes"].as_number() / (e.end - e.begin) * 1e-3,
                  2e-3 + 0.02 * a["GB/s"].as_number());
    }
    if (e.name != "gemm") continue;
    EXPECT_TRUE(a.contains("GFLOP/s") || e.end == e.begin);
    if (a.contains("inside") && a["inside"].as_string() == "forward layers.0" &&
        a["a"].as_string() == "bf16 [64, 32] read" && a["b"].as_string() == "bf16 [96, 32] read") {
      EXPECT_EQ(a["out"].as_string(), "bf16 [64, 96] written");
      EXPECT_EQ(a["flops"].as_number(), 2.0 * 64 * 96 * 32);
      seen = true;
    }
  }
  EXPECT_TRUE(seen);
  EXPECT_GT(flops, 2 * 2 * 3 * 2.0 * 64 * 32 * 97);
  const Json& other = trace.json["otherData"];
  EXPECT_EQ(other["steps"].as_string(), "2 to 3");
  EXPECT_EQ(other["ranks"].as_integer(), 2);
  EXPECT_EQ(other["precision"].as_string(), "bf16");
  EXPECT_TRUE(other["model"].is_object());
  EXPECT_TRUE(other["command"].is_array());
  EXPECT_FALSE(other["version"].as_string().empty());
}

TEST(Profile, ChangesNoBit) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = profiled(folder / "");
  const auto traced = train_losses(s);
  s.profile = {};
  s.checkpoint = {};
  EXPECT_TRUE(same_bits(traced, train_losses(s)));
}

TEST(Profile, OnlyTheRanksAskedFor) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = profiled(folder / "");
  s.profile.ranks = {"1"};
  s.profile.directory = folder / "traces/here";
  train(s);
  EXPECT_TRUE(std::filesystem::exists(folder / "traces/here/trace-rank1-steps-2-3.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "traces/here/trace-rank0-steps-2-3.json"));
  s.profile.ranks.clear();  // traces rank 0
  s.checkpoint.save = folder / "other";
  train(s);
  EXPECT_TRUE(std::filesystem::exists(folder / "traces/here/trace-rank0-steps-2-3.json"));
}

TEST(Profile, StepsOfAResumedRunAndOfOneThatEndsEarly) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = profiled(folder / "");
  s.checkpoint.exit_interval = 3;
  s.profile.step_end = 100;
  train(s);  // steps 1 to 3 of 5
  EXPECT_EQ(
      Trace(folder / "save/trace-rank0-steps-2-5.json").json["otherData"]["steps"].as_string(),
      "2 to 3");
  s.checkpoint.load = s.checkpoint.save;
  s.checkpoint.exit_interval.reset();
  train(s);
  EXPECT_EQ(Trace(folder / "save/trace-rank0-steps-4-5.json").count("steps", "step"), 2);
}

TEST(Profile, AFolderThatCannotBeWrittenIsAnErrorBeforeTheFirstStep) {
  const TemporaryDirectory folder;
  write_file(folder / "file", "");
  for (const char* rank : {"0", "1"}) {
    settings::TrainSettings s = profiled(folder / "");
    s.checkpoint = {};
    s.profile.ranks = {rank};
    s.profile.directory = folder / "file/traces";
    TrainHooks hooks;
    hooks.after_step = [](const IterationReport&) { FAIL() << "a step was made"; };
    try {
      train(s, hooks);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("file/traces"), std::string::npos) << error.what();
    }
  }
}

TEST(Profile, ARunThatDoesNotReachItsStepsSaysSo) {
  const TemporaryDirectory folder;
  const auto alone = comm::single();
  settings::ProfileSettings settings;
  settings.profile = true;
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 10}, {12, 20}}) {
    Profile profile(settings, *alone);
    profile.open(first, last, folder / "", system_files());
    const std::string output = profile.finish({});
    EXPECT_NE(output.find("the steps to trace are 11 to 12"), std::string::npos) << output;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  settings.profile = false;
  Profile off(settings, *alone);
  off.open(0, 20, folder / "", system_files());
  EXPECT_EQ(off.finish({}), "");
  EXPECT_EQ(&off.world(), alone.get());
}

TEST(Profile, FlagsThatMakeNoSenseAreRefused) {
  const auto refused = [](const settings::ProfileSettings& settings) {
    try {
      settings.check(2);
      return std::string("accepted");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused({.profile = true}), "accepted");
  EXPECT_EQ(refused({.step_start = 12, .step_end = 10}), "accepted");  // without --profile
  const std::vector<std::pair<settings::ProfileSettings, std::string>> cases = {
      {{.profile = true, .step_start = -1}, "--profile-step-start is -1"},
      {{.profile = true, .step_start = 4, .step_end = 4}, "--profile-step-end is 4"},
      {{.profile = true, .ranks = {"0", "2"}},
       "--profile-ranks has '2'; the ranks of this run are 0 to 1"},
      {{.profile = true, .ranks = {"x"}}, "--profile-ranks has 'x'"},
      {{.profile = true, .ranks = {"-1"}}, "--profile-ranks has '-1'"},
      {{.profile = true, .directory = ""}, "--profile-dir is empty"}};
  for (const auto& [settings, text] : cases)
    EXPECT_NE(refused(settings).find(text), std::string::npos) << refused(settings);
}

TEST(Profile, TextAndNumbersOfATraceAreJson) {
  EXPECT_EQ(json_text("a \"b\"\n"), R"("a \"b\"\n")");
  EXPECT_EQ(json_number(0.5), "0.5");
  EXPECT_EQ(json_number(INFINITY), "\"inf\"");
  EXPECT_EQ(json_number(NAN), "\"nan\"");
  EXPECT_EQ(json_number(-NAN), "\"nan\"");
}

}  // namespace
}  // namespace megatron::training
