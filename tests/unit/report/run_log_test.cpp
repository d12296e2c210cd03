#include "report/log/run_log.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <sstream>

#include "base/machine_limits.h"
#include "report/log/console.h"
#include "report/log/interval.h"
#include "report/log/json_lines_log.h"
#include "report/log/machine.h"
#include "report/log/megatron_line.h"
#include "text.h"
#include "unit/report/event_reader.h"
#include "unit/report/log_support.h"

namespace megatron::report {
namespace {

using testing::count;

using namespace log_test;

TEST(Console, LossRatesAndTimeLeftComeFirst) {
  report::StepRecord r = some_step(12);
  EXPECT_EQ(report::console_line(r, some_run()),
            "iteration     12/50 | loss 0.4167 | 512 tokens/s | 3m05s left | lr 1.00e-03 | grad "
            "norm 0.300 | 75.0% of peak");
  r.overall_tokens_per_second = 409.6;
  EXPECT_EQ(report::console_line(r, some_run()),
            "iteration     12/50 | loss 0.4167 | 512 tokens/s (410 in all) | 3m05s left | lr "
            "1.00e-03 | grad norm 0.300");
}

TEST(Console, StepLineFits120Columns) {
  const double numbers[] = {0,          1e-300, 1.234567e-5, 0.0123,   5.5, 12.34567,
                            123456.789, 1e9,    3e38,        -1.5e300, NAN, INFINITY};
  for (const int64_t iteration : {int64_t{1}, int64_t{1000000}, int64_t{2147483647}}) {
    for (const double loss : numbers) {
      for (const double rate : numbers) {
        report::StepRecord r = some_step(iteration);
        r.loss = loss;
        r.tokens_per_second = r.overall_tokens_per_second = std::abs(rate);
        r.flops_per_second = r.gradient_norm = r.parameter_norm = rate;
        r.loss_scale = 4294967296;
        r.skipped = 100;
        r.consumed_samples = int64_t{1} << 60;
        for (const double left : {0.0, 185.0, 1e7, 1e13, 1.0 * NAN}) {
          r.seconds_left = left;
          report::RunRecord run = some_run();
          run.train_iters = iteration;
          const std::string line = report::console_line(r, run);
          EXPECT_LE(line.size(), 120u) << line;
          const size_t loss = line.find(" | loss "), speed = line.find(" tokens/s");
          EXPECT_LT(loss, speed) << line;
          EXPECT_LT(speed, line.find(" left")) << line;
          EXPECT_NE(line.find(" in all)") == line.npos, r.overall_tokens_per_second > 0) << line;
        }
      }
    }
  }
  report::StepRecord r = some_step(1000000);
  r.loss = 12.34567;
  r.tokens_per_second = 1234567890;
  report::RunRecord run = some_run();
  run.train_iters = 1000000;
  EXPECT_TRUE(report::console_line(r, run).starts_with(
      "iteration 1000000/1000000 | loss 12.3457 | 1.2G tokens/s | 3m05s left | lr 1.00e-03"));
}

TEST(Console, MetricsThatDoNotFitHaveLinesOfTheirOwn) {
  report::StepRecord r = some_step(12);
  r.metrics = {{.name = "expert_load", .value = 1.4, .layers = {{3, 1.2}, {5, 1.6}}},
               {.name = "dropped_share", .value = 0.0125, .layers = {{3, 0.01}, {5, 0.015}}}};
  EXPECT_EQ(report::console_line(r, some_run()),
            "iteration     12/50 | loss 0.4167 | 512 tokens/s | 3m05s left | lr 1.00e-03 | grad "
            "norm 0.300 | 75.0% of peak\n"
            "   expert_load 1.4 (1.6 layer 5) | dropped_share 0.0125 (0.015 layer 5)");
  r.metrics.pop_back();
  const std::string one = report::console_line(r, some_run());
  EXPECT_NE(one.find("3m05s left | expert_load 1.4 (1.6 layer 5) | lr"), std::string::npos) << one;
  EXPECT_EQ(one.find('\n'), std::string::npos) << one;
  for (int i = 0; i < 9; ++i) {
    r.metrics.push_back(r.metrics[0]);
    std::istringstream lines(report::console_line(r, some_run()));
    int metrics = 0;
    for (std::string line; std::getline(lines, line); metrics += count(line, "expert_load"))
      EXPECT_LE(line.size(), 120u) << line;
    EXPECT_EQ(metrics, i + 2);
  }
}

TEST(Console, WhatIsNotKnownIsNotANumber) {
  report::StepRecord r = some_step(12);
  r.peak_share = -1;
  r.seconds_left = NAN;
  r.gradient_norm = INFINITY;
  r.tokens_per_second = NAN;
  const std::string line = report::console_line(r, some_run());
  for (const char* part : {"| n/a left", "grad norm n/a", "| n/a tokens/s"})
    EXPECT_NE(line.find(part), std::string::npos) << line;
  EXPECT_EQ(line.find("of peak"), std::string::npos) << line;
}

TEST(Console, ALossThatIsNoNumberIsToldAsSuch) {
  report::StepRecord r = some_step(12);
  r.loss = -NAN;
  EXPECT_NE(report::console_line(r, some_run()).find("| loss nan |"), std::string::npos);
  r.loss = INFINITY;
  EXPECT_NE(report::console_line(r, some_run()).find("| loss inf |"), std::string::npos);
  r.loss = 1.234567e-5;
  EXPECT_NE(report::console_line(r, some_run()).find("| loss 1.2346e-05 |"), std::string::npos);
  EXPECT_EQ(report::console_line(report::ValidationRecord{20, "valid", -NAN, 100}),
            "validation loss at iteration 20 | lm loss value: nan | lm loss PPL: nan");
}

TEST(Console, SkippedStepsAndTheLossScaleComeBeforeTheRest) {
  report::StepRecord r = some_step(12);
  r.loss_scale = 65536;
  r.skipped = 3;
  r.parameter_norm = 2.5;
  EXPECT_NE(report::console_line(r, some_run())
                .find("3m05s left | 3 skipped | loss scale 65536 | params norm 2.500"),
            std::string::npos);
}

TEST(Console, AnExplodingNormLeavesTheOtherFiguresTheirPlace) {
  report::StepRecord r = some_step(12);
  r.gradient_norm = 1.5;
  const std::string usual = report::console_line(r, some_run());
  r.gradient_norm = 1.2345e37;
  const std::string exploded = report::console_line(r, some_run());
  EXPECT_NE(exploded.find(" | grad norm 1.235e+37 | "), std::string::npos) << exploded;
  EXPECT_EQ(std::ranges::count(exploded, '|'), std::ranges::count(usual, '|')) << exploded;
  r.gradient_norm = 2e-7;
  EXPECT_NE(report::console_line(r, some_run()).find("grad norm 2.000e-07"), std::string::npos);
}

TEST(Console, TheClosingLineHasBothRates) {
  report::RunTotals t{.steps = 40,
                      .tokens = 1200000,
                      .flops = 6e12,
                      .seconds = 100,
                      .step_seconds = 60,
                      .evaluation_seconds = 30,
                      .save_seconds = 8};
  EXPECT_EQ(report::closing_line(t, some_run()),
            "trained 40 steps, 1.2M tokens in 1m40s: 20000 tokens/s in steps (0.1 TFLOP/s, 50.0% "
            "of bf16 GEMM peak), 12000 overall; 60.0% of the time in steps, 30.0% in evaluation, "
            "8.0% saving checkpoints");
}

// The fields, widths and order of Megatron-LM's training_log, parsed as scripts do.
TEST(MegatronFormat, StepLineIsMegatrons) {
  setenv("TZ", "UTC", 1);
  tzset();
  report::Interval interval;
  report::StepRecord r = some_step(12);
  interval.add(r);
  EXPECT_EQ(megatron_line(interval.take(), some_run(), 1700000000.25),
            " [2023-11-14 22:13:20.250000] iteration       12/      50 | consumed samples:"
            "           96 | elapsed time per iteration (ms): 250.0 | throughput per GPU "
            "(TFLOP/s/GPU): 0.1 | learning rate: 1.000000E-03 | global batch size:     8 | lm "
            "loss: 4.166667E-01 | loss scale: 1.0 | grad norm: 0.300 | number of skipped "
            "iterations:   0 | number of nan iterations:   0 |");
  // For several steps, the mean of those that count.
  r.loss = 2;
  r.loss_scale = 65536;
  interval.add(r);
  r.loss = 4;
  interval.add(r);
  r.loss = 100;
  r.skipped = 1;
  interval.add(r);
  r.loss = NAN;
  interval.add(r);
  const std::string line = megatron_line(interval.take(), some_run(), 0);
  EXPECT_NE(line.find(" lm loss: 3.000000E+00 | loss scale: 65536.0 |"), line.npos) << line;
  EXPECT_TRUE(
      line.ends_with(" number of skipped iterations:   2 | number of nan iterations:   1 |"))
      << line;
  interval.add(r);
  EXPECT_EQ(megatron_line(interval.take(), some_run(), 0).find("lm loss"), line.npos);
}

TEST(MegatronFormat, ValidationStandsBetweenRules) {
  const std::string line =
      " validation loss at iteration 20 | lm loss value: 2.000000E+00 | lm loss PPL: "
      "7.389056E+00 | ";
  const std::string rule(line.size() + 1, '-');
  EXPECT_EQ(report::megatron_lines({20, "valid", 2.0, 100}), rule + "\n" + line + "\n" + rule);
  EXPECT_NE(
      report::megatron_lines({20, "test", 2.0, 100}).find("iteration 20 on test set | lm loss"),
      std::string::npos);
}

TEST(MegatronFormat, IsChosenByItsFlag) {
  report::LogSettings settings;
  megatron::Fields fields;
  settings.fields(fields);
  fields.find("log-format")->assign({"megatron"});
  ::testing::internal::CaptureStdout();
  {
    report::RunLog log(settings, "", some_run(), nullptr);
    log.step(some_step(1));
    log.validation({1, "valid", 2, 100});
  }
  const std::vector<std::string> lines = lines_of(::testing::internal::GetCapturedStdout());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].starts_with(" [20")) << lines[0];
  EXPECT_NE(lines[0].find(" | lm loss: 5.000000E+00 | loss scale: 1.0 | "), std::string::npos);
  EXPECT_TRUE(lines[1].starts_with("-----")) << lines[1];
  EXPECT_THROW(fields.find("log-format")->assign({"json"}), Error);
}

TEST(Metrics, AreInEveryLogByName) {
  report::StepRecord r = some_step(12);
  r.metrics = {{"z_loss", 0.25}, {"dropped", 12}, {"mtp_1 loss", NAN}};
  EXPECT_NE(report::console_line(r, some_run())
                .find("3m05s left | z_loss 0.25 | dropped 12 | mtp_1 loss n/a | lr 1.00e-03"),
            std::string::npos)
      << report::console_line(r, some_run());
  const Json line = report::to_json(r, 0);
  EXPECT_EQ(line["metrics"]["z_loss"], Json(0.25));
  EXPECT_TRUE(line["metrics"]["mtp_1 loss"].is_null());
  EXPECT_FALSE(report::to_json(some_step(12), 0).contains("metrics"));
  EXPECT_NE(megatron_line(r, some_run(), 0)
                .find(" z_loss: 2.500000E-01 | dropped: 1.200000E+01 | mtp_1 loss: NAN | loss"),
            std::string::npos)
      << megatron_line(r, some_run(), 0);
}

TEST(Metrics, OfLayersAreMeanAndOutstandingLayerOnTheConsoleAndAllInTheFile) {
  report::StepRecord r = some_step(12);
  r.metrics = {{"expert_load", 1.5, {}}, {"entropy", 2, {{1, 3}, {4, 1}}, true}, {"plain", 7}};
  for (int64_t layer = 0; layer < 64; ++layer)
    r.metrics[0].layers.push_back({layer, layer == 17 ? 2.3125 : 1.25});
  const std::string line = report::console_line(r, some_run());
  EXPECT_NE(line.find("\n   expert_load 1.5 (2.31 layer 17) | entropy 2 (1 layer 4) | plain 7"),
            std::string::npos)
      << line;
  const Json json = report::to_json(r, 0);
  EXPECT_EQ(json["metrics"]["expert_load"], Json(1.5));
  const Json& layers = json["layer_metrics"];
  ASSERT_EQ(layers["layer"].as_array().size(), 64u);
  EXPECT_EQ(layers["expert_load"].as_array().at(17), Json(2.3125));
  EXPECT_EQ(layers["entropy"].as_array().at(4), Json(1.0));
  EXPECT_TRUE(layers["entropy"].as_array().at(2).is_null());
  EXPECT_FALSE(layers.contains("plain"));
  r.metrics = {r.metrics[1]};
  const std::string least = report::console_line(r, some_run());
  EXPECT_NE(least.find("entropy 2 (1 layer 4)"), std::string::npos) << least;
}

TEST(Interval, CountsSkippedSteps) {
  report::Interval interval;
  for (const int64_t skipped : {1, 0, 1}) {
    report::StepRecord r = some_step(1);
    r.skipped = skipped;
    interval.add(r);
  }
  EXPECT_EQ(interval.take().skipped, 2);
  interval.add(some_step(4));
  EXPECT_EQ(interval.take().skipped, 0);
}

TEST(Console, ValidationAndSampleLines) {
  EXPECT_EQ(report::console_line(report::ValidationRecord{20, "valid", 2.0, 100}),
            "validation loss at iteration 20 | lm loss value: 2.000000E+00 | lm loss PPL: "
            "7.389056E+00");
  EXPECT_EQ(report::console_line(report::ValidationRecord{5, "first", 50, 100}),
            "validation loss at iteration 5 on first | lm loss value: 5.000000E+01 | lm loss PPL: "
            "4.851652E+08");
  EXPECT_EQ(report::console_line(
                report::SampleRecord{20, "Once", " up\non\t\x1b[31m\xc2\x9bm caf\xc3\xa9\x80"}),
            "sample at iteration 20 | prompt: Once | text:  up\\non\\t\\x1b[31m\\u009bm "
            "caf\xc3\xa9\xef\xbf\xbd");
}

TEST(Interval, MeansAreOverTimeAndTheRestIsTheLastStep) {
  report::Interval interval;
  report::StepRecord a = some_step(1), b = some_step(2);
  a.seconds = 1;
  a.tokens_per_second = 100;
  a.flops_per_second = 10;
  a.peak_share = 0.1;
  a.data_wait = 0.5;
  a.communication_wait = 0.25;
  a.save_wait = 0;
  b.steps = 2;
  b.seconds = 1.5;  // 3 s together
  b.tokens_per_second = 300;
  b.flops_per_second = 30;
  b.peak_share = 0.3;
  b.data_wait = 0.1;
  b.communication_wait = 0.05;
  b.save_wait = 0.4;
  interval.add(a);
  interval.add(b);
  const report::StepRecord mean = interval.take();
  EXPECT_EQ(mean.iteration, 2);
  EXPECT_EQ(mean.loss, b.loss);
  EXPECT_EQ(mean.steps, 3);
  EXPECT_DOUBLE_EQ(mean.seconds, 4.0 / 3);
  EXPECT_DOUBLE_EQ(mean.tokens_per_second, 250);
  EXPECT_DOUBLE_EQ(mean.flops_per_second, 25);
  EXPECT_DOUBLE_EQ(mean.peak_share, 0.25);
  EXPECT_DOUBLE_EQ(mean.data_wait, 0.2);
  EXPECT_DOUBLE_EQ(mean.communication_wait, 0.1);
  EXPECT_DOUBLE_EQ(mean.save_wait, 0.3);
  interval.add(a);
  EXPECT_EQ(interval.take().seconds, 1);  // starts a new interval
  EXPECT_THROW(interval.take(), InternalError);
  b.peak_share = -1;
  interval.add(a);
  interval.add(b);
  EXPECT_EQ(interval.take().peak_share, -1);
}

TEST(Machine, TellsWhatItIs) {
  EXPECT_FALSE(report::host_name().empty());
  EXPECT_GE(report::core_count(), 1);
  EXPECT_GT(report::resident_bytes(), 1 << 20);
  EXPECT_LT(report::resident_bytes(), available_memory());
  EXPECT_GT(report::seconds_since_1970(), 1.7e9);
  ASSERT_FALSE(report::command_line().empty());
  EXPECT_EQ(cpuinfo_value("processor\t: 0\nmodel name\t: A  B\r\nmodel name\t: C\n", "model name"),
            "A  B");
  EXPECT_EQ(cpuinfo_value("model name\t:\n", "model name"), "");
  EXPECT_EQ(cpuinfo_value("model", "model name"), "");
  EXPECT_EQ(cpuinfo_value("", "model name"), "");
}

TEST(LogSettings, NamesTheFlagThatIsWrong) {
  const auto complaint = [](const std::function<void(report::LogSettings&)>& change) {
    report::LogSettings s;
    change(s);
    return error_of([&] { s.check(); });
  };
  EXPECT_EQ(complaint([](report::LogSettings&) {}), "");
  EXPECT_NE(
      complaint([](report::LogSettings& s) { s.log_interval = 0; }).find("--log-interval is 0"),
      std::string::npos);
  EXPECT_NE(complaint([](report::LogSettings& s) {
              s.tensorboard_log_interval = -2;
            }).find("--tensorboard-log-interval is -2"),
            std::string::npos);
  EXPECT_NE(complaint([](report::LogSettings& s) { s.log_jsonl = ""; }).find("--log-jsonl"),
            std::string::npos);
  EXPECT_NE(
      complaint([](report::LogSettings& s) { s.tensorboard_dir = ""; }).find("--tensorboard-dir"),
      std::string::npos);
  report::LogSettings s;
  megatron::Fields fields;
  s.fields(fields);
  for (const char* flag :
       {"log-interval", "log-jsonl", "tensorboard-dir", "tensorboard-log-interval"}) {
    EXPECT_NE(fields.find(flag), nullptr) << flag;
  }
}

std::vector<Json> records(const std::string& path) {
  std::vector<Json> all;
  for (const std::string& line : lines_of(read_file(path))) all.push_back(Json::parse(line));
  return all;
}

// Returns the standard output of `f`.
std::string printed(const std::function<void()>& f) {
  ::testing::internal::CaptureStdout();
  f();
  return ::testing::internal::GetCapturedStdout();
}

// Reads the event file of `folder`.
std::vector<Event> events_of(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) return read_events(read_file(entry.path().string()));
  }
  return {};
}

TEST(RunLog, TheJsonHasBothRates) {
  report::StepRecord r = some_step(3);
  EXPECT_FALSE(to_json(r, 0).contains("overall_tokens_per_second"));
  r.overall_tokens_per_second = 400.5;
  EXPECT_EQ(to_json(r, 0)["tokens_per_second"], Json(512.0));
  EXPECT_EQ(to_json(r, 0)["overall_tokens_per_second"], Json(400.5));
  const report::RunTotals totals{.steps = 4, .tokens = 800, .seconds = 8, .step_seconds = 4};
  const Json end = report::end_to_json(4, report::EndReason::done, "", 0, totals);
  EXPECT_EQ(end["tokens_per_second"], Json(200.0));
  EXPECT_EQ(end["overall_tokens_per_second"], Json(100.0));
  EXPECT_EQ(end["tokens"], Json(800));
  EXPECT_FALSE(report::end_to_json(4, report::EndReason::done, "", 0).contains("tokens"));
}

TEST(RunLog, TellsEachIntervalEverywhere) {
  const TemporaryDirectory folder;
  report::LogSettings settings;
  settings.log_interval = 4;
  settings.tensorboard_dir = folder / "board";
  settings.tensorboard_log_interval = 2;
  report::RunRecord run = some_run();
  run.train_iters = 10;
  const std::string text = printed([&] {
    report::RunLog log(settings, folder.path(), run, nullptr);
    for (int64_t i = 1; i <= 10; ++i) log.step(some_step(i));
    log.validation({10, "valid", 2, 100});
    log.save({10, 5, "x", 1, 1});
    log.sample({10, "Once", "upon"});
    log.note(10, false, "a note");
    log.end(10, report::EndReason::done, "");
  });
  const std::vector<std::string> lines = lines_of(text);
  ASSERT_EQ(lines.size(), 6u) << text;
  const std::vector<int64_t> iterations = {1, 4, 8, 10};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(lines[i].starts_with(fmt::format("iteration {:>6}/10 | ", iterations[i]))) << text;
  }
  EXPECT_TRUE(lines[4].starts_with("validation loss at iteration 10 |"));
  EXPECT_TRUE(lines[5].starts_with("sample at iteration 10 |"));

  const std::vector<Json> json = records(folder / "log.jsonl");
  ASSERT_EQ(json.size(), 10u);
  std::vector<std::string> types;
  for (const Json& record : json) types.push_back(record["type"].as_string());
  EXPECT_EQ(types, (std::vector<std::string>{"run", "step", "step", "step", "step", "validation",
                                             "save", "sample", "note", "end"}));
  const std::vector<int64_t> steps = {1, 3, 4, 2};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json[i + 1]["iteration"], Json(iterations[i]));
    EXPECT_EQ(json[i + 1]["steps"], Json(steps[i]));
    EXPECT_NEAR(json[i + 1]["time"].as_number(), report::seconds_since_1970(), 60);
  }
  // Version, mark, configuration, points at 2, 4, 6, 8, 10, validation, sample.
  const std::vector<Event> events = events_of(folder / "board");
  ASSERT_EQ(events.size(), 10u);
  EXPECT_EQ(events[3].step, 2);
  EXPECT_EQ(events[7].step, 10);
  EXPECT_EQ(events[7].scalars.at("lm loss"), 0.5f);
}

TEST(RunLog, AKilledAndResumedRunHasTheRecordsOfOneNeverKilled) {
  const TemporaryDirectory folder;
  report::LogSettings settings;
  settings.log_interval = 3;
  const auto steps = [&](const std::string& save, int64_t first, int64_t last) {
    report::RunLog log(settings, save, some_run(first), nullptr);
    for (int64_t i = first + 1; i <= last; ++i) log.step(some_step(i));
  };
  printed([&] {
    steps(folder / "whole", 0, 20);
    steps(folder / "killed", 0, 14);
    steps(folder / "killed", 7, 20);  // resumed from the checkpoint of step 7
  });
  const auto losses = [](const std::string& path) {
    std::vector<std::pair<int64_t, double>> all;
    for (const Json& r : records(path)) {
      if (r["type"] == Json("step"))
        all.emplace_back(r["iteration"].as_integer(), r["loss"].as_number());
    }
    return all;
  };
  EXPECT_EQ(losses(folder / "killed/log.jsonl"), losses(folder / "whole/log.jsonl"));
  EXPECT_EQ(losses(folder / "whole/log.jsonl").size(), 7u);
  std::vector<int64_t> runs;
  for (const Json& r : records(folder / "killed/log.jsonl"))
    if (r["type"] == Json("run")) runs.push_back(r["iteration"].as_integer());
  EXPECT_EQ(runs, (std::vector<int64_t>{0, 7}));
}

TEST(RunLog, TheFlagComesBeforeTheSaveFolderAndWithoutBothThereIsNoFile) {
  const TemporaryDirectory folder;
  report::LogSettings settings;
  const std::string none =
      printed([&] { report::RunLog(settings, "", some_run(), nullptr).step(some_step(1)); });
  EXPECT_TRUE(none.starts_with("iteration ")) << none;
  settings.log_jsonl = folder / "mine.jsonl";
  {
    report::RunLog log(settings, folder / "save", some_run(), nullptr);
  }
  EXPECT_EQ(records(folder / "mine.jsonl").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder / "save"));
}

TEST(RunLog, AtTheStartAFileThatCannotBeWrittenIsAnError) {
  const TemporaryDirectory folder;
  write_file(folder / "file", "x");
  report::LogSettings json, board;
  json.log_jsonl = "/dev/full";
  std::string text = error_of([&] { report::RunLog(json, "", some_run(), nullptr); });
  EXPECT_TRUE(text.starts_with("--log-jsonl: cannot write '/dev/full'")) << text;
  json.log_jsonl = folder / "file/log.jsonl";
  text = error_of([&] { report::RunLog(json, "", some_run(), nullptr); });
  EXPECT_TRUE(text.starts_with("--log-jsonl: ")) << text;
  text = error_of([&] { report::RunLog({}, folder / "file", some_run(), nullptr); });
  EXPECT_TRUE(
      text.starts_with("the log in the --save folder (choose another file with --log-jsonl): "))
      << text;
  board.tensorboard_dir = folder / "file";
  text = error_of([&] { report::RunLog(board, "", some_run(), nullptr); });
  EXPECT_TRUE(text.starts_with("--tensorboard-dir: ")) << text;
  EXPECT_NE(text.find(folder / "file"), std::string::npos) << text;
}

TEST(RunLog, AFileThatIsRemovedIsToldOnceAndTheRunGoesOn) {
  const TemporaryDirectory folder;
  report::LogSettings settings;
  settings.log_interval = 1;
  settings.tensorboard_dir = folder / "save/board";
  ::testing::internal::CaptureStderr();
  const std::string lines = printed([&] {
    report::RunLog log(settings, folder / "save", some_run(), nullptr);
    log.step(some_step(1));
    std::filesystem::remove_all(folder / "save");
    for (int64_t i = 2; i <= 5; ++i) log.step(some_step(i));
    log.end(5, report::EndReason::done, "");
  });
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines_of(lines).size(), 5u);
  EXPECT_EQ(count(warnings, "warning"), 2u) << warnings;
  EXPECT_EQ(count(warnings, "log.jsonl': it was removed"), 1u) << warnings;
  EXPECT_EQ(count(warnings, "--tensorboard-dir"), 1u) << warnings;
  EXPECT_FALSE(std::filesystem::exists(folder / "save"));
}

TEST(RunLog, AFullDiskIsToldOnceAndTheNextRunGoesOnInTheFile) {
  const TemporaryDirectory folder;
  report::LogSettings settings;
  settings.log_interval = 1;
  ::testing::internal::CaptureStderr();
  printed([&] {
    report::RunLog log(settings, folder.path(), some_run(), nullptr);
    log.step(some_step(1));
    // A limit on file sizes falls within the next line.
    const auto limit = static_cast<rlim_t>(read_file(folder / "log.jsonl").size() + 100);
    rlimit before{}, now{};
    getrlimit(RLIMIT_FSIZE, &before);
    now = {limit, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &now);
    for (int64_t i = 2; i <= 4; ++i) log.step(some_step(i));
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    log.step(some_step(5));
  });
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(warnings, "warning"), 1u) << warnings;
  EXPECT_NE(warnings.find("ulimit -f"), std::string::npos) << warnings;
  EXPECT_FALSE(read_file(folder / "log.jsonl").ends_with("\n"));
  printed(
      [&] { report::RunLog(settings, folder.path(), some_run(4), nullptr).step(some_step(5)); });
  const std::vector<Json> all = records(folder / "log.jsonl");
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1]["iteration"], Json(1));
  EXPECT_EQ(all[3]["iteration"], Json(5));
}

TEST(RunLog, LinesGoAboveTheProgressBar) {
  ::testing::internal::CaptureStderr();
  const std::string text = printed([&] {
    Progress progress("training", 50, "steps");
    report::RunLog log({}, "", some_run(), &progress);
    log.step(some_step(1));
    progress.finish();
  });
  EXPECT_TRUE(text.starts_with("iteration      1/50 |")) << text;
  ::testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace megatron::report
