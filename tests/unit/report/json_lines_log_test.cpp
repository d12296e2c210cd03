#include "report/log/json_lines_log.h"

#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "base/version.h"
#include "unit/report/log_support.h"

namespace megatron::report {
namespace {

using namespace log_test;

std::vector<std::string> keys(const Json& line) {
  std::vector<std::string> names;
  for (const auto& [key, unused] : line.as_object()) names.push_back(key);
  return names;
}

using Names = std::vector<std::string>;

TEST(JsonRecords, RunHasEveryKeyAndTellsTheMachine) {
  const Json line = to_json(some_run(20), 1.5);
  EXPECT_EQ(keys(line),
            (Names{"type", "schema", "time", "version", "host", "command", "iteration", "flags",
                   "model", "parameters", "layout", "threads", "machine", "precision", "peak_flops",
                   "flop_formula", "train_iters", "seq_length", "consumed_tokens"}));
  EXPECT_EQ(line["type"], Json("run"));
  EXPECT_EQ(line["schema"], Json(1));
  EXPECT_EQ(line["time"], Json(1.5));
  EXPECT_EQ(line["version"], Json(version()));
  EXPECT_EQ(line["iteration"], Json(20));
  EXPECT_NE(line["command"].as_array().at(0).as_string().find("unit_report"), std::string::npos);
  EXPECT_EQ(line["flags"]["lr"], Json("3e-3"));
  EXPECT_EQ(line["model"]["num_layers"], Json(4));
  EXPECT_EQ(line["layout"]["data_parallel"], Json(2));
  EXPECT_GT(line["machine"]["cores"].as_integer(), 0);
  EXPECT_GT(line["machine"]["memory_bytes"].as_integer(), 1 << 20);
  EXPECT_EQ(line["machine"]["device"], Json("cpu"));
  EXPECT_EQ(line["peak_flops"], Json(2e11));
  report::RunRecord bare;
  EXPECT_FALSE(to_json(bare, 0).contains("peak_flops"));
  EXPECT_EQ(to_json(bare, 0)["model"], Json(Json::Object{}));
}

TEST(JsonRecords, LossScaleAndSkippedStepsWhereThereAreAny) {
  report::StepRecord r = some_step(3);
  r.loss_scale = 0.5;
  r.skipped = 2;
  const Json line = to_json(r, 1);
  EXPECT_EQ(line["loss_scale"], Json(0.5));
  EXPECT_EQ(line["skipped"], Json(2));
}

TEST(JsonRecords, StepReadsBackToTheVeryNumbers) {
  report::StepRecord r = some_step(3);
  r.loss = std::nextafter(1.0 / 3, 1);
  r.learning_rate = 5e-324;
  r.flops_per_second = 1e300;
  const Json line = Json::parse(to_json(r, 1700000000.123456).dump());
  EXPECT_EQ(keys(line), (Names{"type",
                               "time",
                               "iteration",
                               "consumed_samples",
                               "consumed_tokens",
                               "loss",
                               "learning_rate",
                               "gradient_norm",
                               "weight_decay",
                               "global_batch_size",
                               "steps",
                               "seconds",
                               "tokens_per_second",
                               "flops_per_second",
                               "peak_share",
                               "data_wait",
                               "communication_wait",
                               "save_wait",
                               "seconds_left",
                               "memory"}));
  EXPECT_EQ(line["time"].as_number(), 1700000000.123456);
  EXPECT_EQ(line["loss"].as_number(), r.loss);
  EXPECT_EQ(line["learning_rate"].as_number(), 5e-324);
  EXPECT_EQ(line["gradient_norm"].as_number(), 0.1 + 0.2);
  EXPECT_EQ(line["flops_per_second"].as_number(), 1e300);
  EXPECT_EQ(line["consumed_tokens"], Json(384));
  EXPECT_EQ(keys(line["memory"]), (Names{"parameters", "gradients", "optimizer", "activations",
                                         "scratch", "communication", "process"}));
  EXPECT_EQ(line["memory"]["communication"], Json(6));
  EXPECT_EQ(line["memory"]["process"], Json(7));
}

TEST(JsonRecords, WhatIsNotFiniteIsNullAndWhatIsNotKnownIsAbsent) {
  report::StepRecord r = some_step(3);
  r.loss = std::numeric_limits<double>::quiet_NaN();
  r.gradient_norm = std::numeric_limits<double>::infinity();
  r.peak_share = -1;
  r.process_memory = 0;
  const Json line = Json::parse(to_json(r, 0).dump());
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["gradient_norm"].is_null());
  EXPECT_FALSE(line.contains("peak_share"));
  EXPECT_FALSE(line["memory"].contains("process"));
}

TEST(JsonRecords, TheOthers) {
  const Json validation = to_json(report::ValidationRecord{9, "valid", 2, 4096}, 1);
  EXPECT_EQ(keys(validation),
            (Names{"type", "time", "iteration", "set", "loss", "perplexity", "tokens"}));
  EXPECT_EQ(validation["perplexity"].as_number(), std::exp(2.0));
  EXPECT_EQ(to_json(report::ValidationRecord{9, "a", 50, 1}, 1)["perplexity"].as_number(),
            std::exp(20.0));
  EXPECT_TRUE(to_json(report::ValidationRecord{9, "a", NAN, 1}, 1)["perplexity"].is_null());
  const Json save = to_json(report::SaveRecord{10, 77, "run/iter_0000010", 1.5, 0.25}, 1);
  EXPECT_EQ(save.dump(),
            R"({"type": "save", "time": 1.0, "iteration": 10, "path": "run/iter_0000010", )"
            R"("bytes": 77, "seconds": 1.5, "wait": 0.25})");
  // An incomplete character, as a byte-level tokenizer may produce it.
  const Json sample = to_json(report::SampleRecord{10, "caf\xc3\xa9 \"", "x\xe2\x82\ny"}, 1);
  EXPECT_EQ(Json::parse(sample.dump())["prompt"], Json("caf\xc3\xa9 \""));
  EXPECT_EQ(Json::parse(sample.dump())["text"], Json("x\xef\xbf\xbd\ny"));
  EXPECT_EQ(report::note_to_json(4, true, "slow", 1).dump(),
            R"({"type": "note", "time": 1.0, "iteration": 4, "level": "warning", "text": "slow"})");
  EXPECT_EQ(report::end_to_json(4, report::EndReason::exit_interval, "", 1).dump(),
            R"({"type": "end", "time": 1.0, "iteration": 4, "reason": "exit-interval"})");
  EXPECT_EQ(report::end_to_json(4, report::EndReason::error, "bad", 1)["text"], Json("bad"));
}

// A log of ten steps, with a save at 5.
std::string write_log(const std::string& path) {
  report::JsonLinesLog log(path, 0);
  log.write(to_json(some_run(), 1));
  for (int64_t i = 1; i <= 10; ++i) {
    log.write(to_json(some_step(i), 1));
    if (i == 5) log.write(to_json(report::SaveRecord{5, 1, "x", 1, 1}, 1));
  }
  return read_file(path);
}

TEST(JsonLinesLog, EachRecordIsALineThatIsThereAtOnce) {
  const TemporaryDirectory folder;
  report::JsonLinesLog log(folder / "not/yet/there/log.jsonl", 0);
  log.write(to_json(some_run(), 1));
  EXPECT_EQ(lines_of(read_file(log.path())).size(), 1u);
  log.write(to_json(some_step(1), 1));
  const std::vector<std::string> lines = lines_of(read_file(log.path()));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(Json::parse(lines[1]), to_json(some_step(1), 1));
  EXPECT_TRUE(read_file(log.path()).ends_with("}\n"));
}

TEST(JsonLinesLog, AResumedRunTakesAwayWhatLiesBeyond) {
  const TemporaryDirectory folder;
  const std::string path = folder / "log.jsonl", whole = write_log(path);
  {
    report::JsonLinesLog log(path, 5);
  }
  const std::vector<std::string> before = lines_of(whole), after = lines_of(read_file(path));
  ASSERT_EQ(after.size(), 7u);  // the run, steps 1 to 5, the save
  EXPECT_EQ(after, Names(before.begin(), before.begin() + 7));
  EXPECT_FALSE(std::filesystem::exists(path + ".1"));
  size_t files = 0;
  for (const auto& unused : std::filesystem::directory_iterator(folder.path())) {
    static_cast<void>(unused);
    ++files;
  }
  EXPECT_EQ(files, 1u);  // no temporary file remains
}

TEST(JsonLinesLog, NothingToTakeAwayLeavesTheFileUntouched) {
  const TemporaryDirectory folder;
  const std::string path = folder / "log.jsonl", whole = write_log(path);
  struct stat before, after;
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  {
    report::JsonLinesLog log(path, 10);
  }
  ASSERT_EQ(stat(path.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(read_file(path), whole);
}

TEST(JsonLinesLog, ALineCutShortIsTakenAway) {
  const TemporaryDirectory folder;
  const std::string path = folder / "log.jsonl", whole = write_log(path);
  const size_t last = whole.rfind("\n", whole.size() - 2) + 1;  // where step 10 begins
  for (size_t size = last + 1; size < whole.size(); size += size < last + 10 ? 1 : 97) {
    std::filesystem::resize_file(path, 0);
    report::AppendFile(path, report::AppendFile::Open::append).write(whole.substr(0, size));
    report::prepare_json_lines(path, 10);
    ASSERT_EQ(read_file(path), whole.substr(0, last)) << size;
  }
  // Also if it is the first line.
  write_file(path, whole.substr(0, 5));
  report::prepare_json_lines(path, 10);
  EXPECT_EQ(read_file(path), "");
}

TEST(JsonLinesLog, ANewRunKeepsTheOldLogs) {
  const TemporaryDirectory folder;
  const std::string path = folder / "log.jsonl", whole = write_log(path);
  {
    report::JsonLinesLog log(path, 0);
    EXPECT_EQ(read_file(path), "");
    log.write(to_json(some_run(), 2));
  }
  EXPECT_EQ(read_file(path + ".1"), whole);
  const std::string second = read_file(path);
  {
    report::JsonLinesLog log(path, 0);
  }
  EXPECT_EQ(read_file(path + ".1"), whole);
  EXPECT_EQ(read_file(path + ".2"), second);
  {
    report::JsonLinesLog log(path, 0);
  }  // an empty file is not a log to keep
  EXPECT_FALSE(std::filesystem::exists(path + ".3"));
}

TEST(JsonLinesLog, LinesMayBeLaidOutInOtherWays) {
  const TemporaryDirectory folder;
  const std::string path = folder / "log.jsonl";
  const std::string begin =
      to_json(some_run(), 1).dump() + "\n" +
      R"({"type":"step","iteration":4,"loss":1,"memory":{}})"
      "\n"
      R"({"type": "step", "time": 1, "loss": 1, "iteration": 5, "memory": {}})"
      "\n";
  write_file(path, begin + R"({"type":"step","iteration":6})"
                           "\n"
                           R"({"type": "step", "time": 1, "loss": 1, "iteration": 6, "memory": {}})"
                           "\n");
  report::prepare_json_lines(path, 5);
  EXPECT_EQ(read_file(path), begin);
}

TEST(JsonLinesLog, ALinkStaysALink) {
  const TemporaryDirectory folder;
  const std::string path = folder / "log.jsonl";
  write_log(folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere", path);
  {
    report::JsonLinesLog log(path, 2);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  EXPECT_EQ(lines_of(read_file(folder / "elsewhere")).size(), 3u);
}

TEST(JsonLinesLog, AFileOfSomebodyElseIsNotTouched) {
  const TemporaryDirectory folder;
  const std::string path = folder / "data.jsonl", whole = write_log(folder / "log.jsonl");
  const std::string run = lines_of(whole)[0] + "\n", step = lines_of(whole)[1] + "\n";
  struct Case {
    std::string text, line;
  };
  const std::vector<Case> cases = {
      {"{\"text\": \"Once upon\"}\n", "line 1 "},
      {"plain text", "line 1 "},
      {"{\"type\": \"text\"}\n", "line 1 "},
      {step, "line 1 "},                                   // does not begin with a run
      {run + step + "\n" + step, "line 3 "},               // an empty line
      {run + step + "{\"type\": \"step\"}\n", "line 3 "},  // no iteration
      {run + "{\"type\": \"photo\", \"iteration\": 3}\n", "line 2 "},
      {run + "[1]\n", "line 2 "},
      {run + "{}\n", "line 2 "},
      {run + step + "and so on", "line 3 "},
      {run + std::string("\0\0\n", 3), "line 2 "},
      {"{\"type\": \"run\", \"schema\": 2, \"iteration\": 0}\n", "newer version"},
  };
  for (const Case& c : cases) {
    for (const int64_t iteration : {0, 1}) {
      write_file(path, c.text);
      const std::string text = error_of([&] { report::JsonLinesLog log(path, iteration); });
      EXPECT_NE(text.find(c.line), std::string::npos) << text << "\n" << c.text;
      EXPECT_NE(text.find(path), std::string::npos) << text;
      EXPECT_NE(text.find("--log-jsonl"), std::string::npos) << text;
      EXPECT_EQ(read_file(path), c.text);
      EXPECT_FALSE(std::filesystem::exists(path + ".1"));
    }
  }
}

TEST(JsonLinesLog, DevicesAreWrittenAndDirectoriesRefused) {
  const TemporaryDirectory folder;
  {
    report::JsonLinesLog("/dev/null", 7).write(to_json(some_run(), 1));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  const std::string full = error_of([] { report::JsonLinesLog("/dev/full", 0).write(Json(1)); });
  EXPECT_NE(full.find("cannot write '/dev/full': No space left"), std::string::npos) << full;
  const std::string text = error_of([&] { report::JsonLinesLog log(folder.path(), 0); });
  EXPECT_NE(text.find(folder.path()), std::string::npos) << text;
}

TEST(AppendFile, TellsWhenItsFileWasRemoved) {
  const TemporaryDirectory folder;
  report::AppendFile file(folder / "a/log", report::AppendFile::Open::create);
  file.write("1");
  EXPECT_NE(
      error_of([&] { report::AppendFile(folder / "a/log", report::AppendFile::Open::create); }),
      "");
  std::filesystem::remove_all(folder / "a");
  const std::string text = error_of([&] { file.write("2"); });
  EXPECT_NE(text.find("it was removed"), std::string::npos) << text;
}

}  // namespace
}  // namespace megatron::report
