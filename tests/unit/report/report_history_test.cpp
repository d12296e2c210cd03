// Reading a run's log: resumes, damaged lines, and refusals.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "report/figures.h"
#include "report/history.h"
#include "unit/report/report_log.h"

namespace megatron::report {
namespace {

void refused(const std::vector<std::string>& runs, const std::string& part) {
  try {
    report::read_histories(runs);
    FAIL() << "not refused: " << part;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(ReportHistory, AResumedRunReplacesWhatItDoesAgain) {
  std::string log = run_line(0, 1000);
  for (int i = 1; i <= 10; ++i) log += step_line(i, 1000 + i, "5.0");
  log += line("validation", 10, "\"set\":\"valid\",\"loss\":1.0");
  log += line("sample", 9, "\"prompt\":\"a\",\"text\":\"gone\"");
  log += run_line(6, 5000);
  for (int i = 7; i <= 9; ++i) log += step_line(i, 5000 + i - 6, "4.0");
  log += run_line(4, 9000);
  log += step_line(5, 9001, "3.0") + step_line(6, 9002, "2.5");
  const LogFolder folder;
  const report::RunHistory h = report::read_history(folder.run("a", log), 100);
  EXPECT_EQ(h.steps.column(kIteration), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(h.steps.column(kLoss), (std::vector<double>{5, 5, 5, 5, 3, 2.5}));
  EXPECT_EQ(h.replaced, 6 + 2 + 3);
  EXPECT_TRUE(h.validations.empty());
  EXPECT_TRUE(h.samples.kept.empty());
  EXPECT_EQ(h.sessions.size(), 3u);
  EXPECT_EQ(h.last_iteration, 6);
  // Running time continues where the valid records ended, without the time between sessions.
  EXPECT_EQ(h.steps.column(kElapsed), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(h.damaged, 0);
}

// The rate covers all sessions without the time between them. A log that begins in the middle of a
// run names the tokens trained before; otherwise there is no rate.
TEST(ReportHistory, KnowsTheRateInAll) {
  const LogFolder folder;
  const std::string steps = step_line(1, 1001, "5.0") + step_line(2, 1004, "4.0");
  const report::RunHistory twice = report::read_history(
      folder.run("a", run_line(0, 1000) + steps + run_line(2, 2000) + step_line(3, 2008, "4.0")),
      100);
  EXPECT_DOUBLE_EQ(twice.overall_tokens_per_second, 24.0 / 12);
  const std::string later = step_line(11, 1002, "5.0") + step_line(12, 1004, "4.0");
  EXPECT_DOUBLE_EQ(report::read_history(
                       folder.run("b", run_line(10, 1000, ",\"consumed_tokens\":80") + later), 100)
                       .overall_tokens_per_second,
                   16.0 / 4);
  EXPECT_TRUE(std::isnan(report::read_history(folder.run("c", run_line(10, 1000) + later), 100)
                             .overall_tokens_per_second));
}

TEST(ReportHistory, KnowsFiguresAndHowARunEnded) {
  std::string log = run_line(0, 1000);
  log += step_line(1, 1010, "5.0") + step_line(2, 1020, "null") + step_line(3, 1030, "4.0");
  log += line("validation", 1, "\"set\":\"valid\",\"loss\":4.5");
  log += line("validation", 2, "\"set\":\"valid\",\"loss\":4.25");
  log += line("validation", 3, "\"set\":\"valid\",\"loss\":null");
  const LogFolder folder;
  const report::RunHistory open = report::read_history(folder.run("a", log), 100);
  EXPECT_EQ(open.loss_not_finite, 1);
  EXPECT_EQ(open.validations.at(0).best, 4.25);
  EXPECT_EQ(open.validations.at(0).best_iteration, 2);
  EXPECT_EQ(open.median_tokens_per_second, 101);
  EXPECT_TRUE(std::isnan(open.median_peak_share));
  EXPECT_EQ(report::status_of(open).text, "no end in the log: still running or killed");
  EXPECT_EQ(report::figures_of(open)[0].value, "4.0000");
  EXPECT_EQ(report::figures_of(open)[1].value, "4.2500");
  EXPECT_EQ(report::figures_of(open)[2].detail, "of 100");
  EXPECT_EQ(report::figures_of(open)[3].value, "24");
  EXPECT_EQ(report::figures_of(open)[6].value, "30s");
  // 24 tokens in 30 s, steps of 101 tokens/s.
  EXPECT_EQ(report::figures_of(open)[4].value, "101");
  EXPECT_EQ(report::figures_of(open)[4].detail,
            "median step · 1 overall, with evaluation, saves and logging");
  const report::RunHistory far =
      report::read_history(folder.run("far", run_line(0, 1) + step_line(1, 2, "1e300")), 9);
  EXPECT_EQ(report::figures_of(far)[0].value, "1e+300");
  for (const auto& [reason, kind] :
       std::vector<std::pair<std::string, std::string>>{{"done", "done"},
                                                        {"signal", "stopped"},
                                                        {"exit-interval", "stopped"},
                                                        {"exit-duration", "stopped"},
                                                        {"error", "error"}}) {
    const std::string end = line("end", 3, "\"reason\":\"" + reason + "\",\"text\":\"why\"");
    EXPECT_EQ(report::status_of(report::read_history(folder.run(reason, log + end), 100)).kind,
              kind);
  }
  // A session began after the end: the run continues.
  const std::string again = log + line("end", 3, "\"reason\":\"signal\"") + run_line(3, 2000);
  EXPECT_EQ(report::status_of(report::read_history(folder.run("b", again), 100)).kind, "open");
}

TEST(ReportHistory, PassesOverDamagedLines) {
  const LogFolder folder;
  const std::string good = run_line(0, 1000) + step_line(1, 1001, "5.0");
  const report::RunHistory cut =
      report::read_history(folder.run("a", good + "{\"type\":\"step\",\"ti"), 100);
  EXPECT_TRUE(cut.cut);
  EXPECT_EQ(cut.damaged, 0);
  const report::RunHistory damaged = report::read_history(
      folder.run("b", good +
                          "{\"type\":\"st\n\n[1]\n{\"type\":\"step\",\"iteration\":\"x\"}\n"
                          "{\"type\":\"step\",\"loss\":1}\n{\"a\":1}\n" +
                          step_line(2, 1002, "4.0")),
      100);
  EXPECT_FALSE(damaged.cut);
  EXPECT_EQ(damaged.damaged, 5);
  ASSERT_EQ(damaged.damages.size(), 5u);
  EXPECT_NE(damaged.damages[0].find("b/log.jsonl, line 3: "), std::string::npos);
  EXPECT_NE(damaged.damages[2].find("line 6: the value of 'iteration' is not a number"),
            std::string::npos)
      << damaged.damages[2];
  EXPECT_EQ(damaged.steps.column(kIteration), (std::vector<double>{1, 2}));
}

TEST(ReportHistory, ReadsTextThatIsNotUtf8) {
  const LogFolder folder;
  const report::RunHistory h = report::read_history(
      folder.run("a", run_line(0, 1000) +
                          line("sample", 1, "\"prompt\":\"\xff\xc3\",\"text\":\"a\xf0\x9f\x98\"")),
      100);
  ASSERT_EQ(h.samples.kept.size(), 1u);
  EXPECT_EQ(text_of(h.samples.kept[0], "prompt"), "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ReportHistory, UnknownRecordsAndKeysDoNotMatter) {
  const LogFolder folder;
  const report::RunHistory h = report::read_history(
      folder.run("a", run_line(0, 1000, ",\"new\":[1]") + line("weather", 1, "\"sun\":true")), 100);
  EXPECT_EQ(h.damaged, 0);
  EXPECT_EQ(h.steps.seen(), 0);
}

TEST(ReportHistory, KeepsABoundedNumberOfRecords) {
  std::string log = run_line(0, 1000);
  for (int i = 1; i <= 5000; ++i) log += line("sample", i, "\"prompt\":\"\",\"text\":\"t\"");
  const LogFolder folder;
  const report::RunHistory h = report::read_history(folder.run("a", log), 100);
  EXPECT_EQ(h.samples.seen, 5000);
  EXPECT_LE(h.samples.kept.size(), 120u);
  EXPECT_EQ(h.samples.kept.back()["iteration"].as_integer(), 5000);
}

TEST(ReportHistory, RefusesWithReasons) {
  const LogFolder folder;
  const std::string& at = folder.path();
  refused({at + "/none"}, "there is no run '" + at + "/none'; give a run's --save directory");
  const std::string run = folder.run("runs/a", run_line(0, 1000));
  refused({at + "/runs"}, "has no log.jsonl; there is one in '" + at + "/runs/a'");
  std::filesystem::create_directories(at + "/empty");
  refused({at + "/empty"}, "has no log.jsonl; `megatron train --save DIR` writes one");
  refused({folder.run("b", "")}, "it has no record of type \"run\"");
  refused({folder.run("c", step_line(1, 5, "1"))}, "it has no record of type \"run\"");
  refused(
      {folder.run("d", "{\"type\":\"run\",\"schema\":2,\"version\":\"9.9\",\"iteration\":0}\n")},
      "newer version of this program (schema 2, version 9.9); this one supports schema 1");
  std::string noise;
  for (int i = 0; i < 300; ++i) noise += "not a record\n";
  refused({folder.run("e", noise)}, "is not the log of a run");
  refused({run, at + "/runs/../runs/a"}, "is given twice");
  refused({"/dev/null"}, "is not a regular file");
  refused(std::vector<std::string>(65, run), "at most 64");
}

TEST(ReportHistory, NamesRunsByWhatTellsThemApart) {
  const LogFolder folder;
  const std::string log = run_line(0, 1000);
  folder.run("x", log);
  write_file(folder.path() + "/other.jsonl", log);
  const auto histories =
      report::read_histories({folder.run("one/run", log), folder.run("two/run", log),
                              folder.path() + "/x", folder.path() + "/other.jsonl"});
  EXPECT_EQ(histories[0].name, "one/run");
  EXPECT_EQ(histories[1].name, "two/run");
  EXPECT_EQ(histories[2].name, "x");
  EXPECT_EQ(histories[3].name, "other");
}

}  // namespace
}  // namespace megatron::report
