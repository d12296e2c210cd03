// `megatron report`: its files, its output and what it refuses.
#include <gtest/gtest.h>

#include "golden/cli/process.h"
#include "unit/report/report_log.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
using report::line;
using report::run_line;
using report::step_line;

class Report : public ::testing::Test {
 protected:
  void refused(const std::vector<std::string>& arguments, const std::string& part) {
    const Outcome o = place_.run(arguments);
    EXPECT_EQ(o.code, 2) << o.out;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  }
  static std::string log() {
    return run_line(0, 1000) + step_line(1, 1001, "5.0") + step_line(2, 1002, "4.0") +
           line("end", 2, "\"reason\":\"done\"");
  }

  Workplace place_;
};

TEST_F(Report, WritesOneFile) {
  write_file(place_ / "a/log.jsonl", log());
  write_file(place_ / "b.jsonl", log() + "broken\n" + step_line(3, 1003, "3.0"));
  const Outcome o =
      place_.run({"report", "a", "b.jsonl", "--output", "out/page.html", "--title", "A & B"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("out/page.html: 2 runs, 5 step records, "), std::string::npos) << o.out;
  EXPECT_NE(o.err.find("ignored: b.jsonl, line 5: "), std::string::npos) << o.err;
  const std::string page = read_file(place_ / "out/page.html");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(page.find("<h1>A &amp; B</h1>"), std::string::npos);
  EXPECT_EQ(place_.listing(),
            (std::set<std::string>{"a", "a/log.jsonl", "b.jsonl", "out", "out/page.html"}));
  EXPECT_EQ(place_.run({"report", "a"}).code, 0);
  EXPECT_TRUE(place_.listing().contains("report.html"));
}

TEST_F(Report, RefusesWithReasons) {
  write_file(place_ / "a/log.jsonl", log());
  write_file(place_ / "file", "");
  refused({"report"}, "run");
  refused({"report", "none"}, "there is no run 'none'");
  refused({"report", "a", "--output", "file/page.html"}, "file");
  refused({"report", "a", "--output", "a"}, "--output a is a directory");
  EXPECT_EQ(place_.listing(), (std::set<std::string>{"a", "a/log.jsonl", "file"}));
}

// A new report replaces only an older report.
TEST_F(Report, LeavesOtherFilesAlone) {
  write_file(place_ / "a/log.jsonl", log());
  write_file(place_ / "x.idx", std::string("MMIDIDX\0\0", 9) + "rest");
  write_file(place_ / "page.html", "<!DOCTYPE html>\n<p>mine</p>\n");
  fs::create_symlink("a/log.jsonl", place_ / "link.html");
  fs::create_hard_link(place_ / "a/log.jsonl", place_ / "hard.html");
  for (const std::string name : {"a/log.jsonl", "./a/../a/log.jsonl", "link.html", "hard.html"})
    refused({"report", "a", "--output", name}, "this command reads");
  for (const std::string name : {"x.idx", "page.html"})
    refused({"report", "a", "--output", name}, name + " exists and is not a report");
  EXPECT_EQ(read_file(place_ / "a/log.jsonl"), log());
  EXPECT_EQ(read_file(place_ / "x.idx").size(), 13u);
  for (int times = 0; times < 2; ++times) {
    const Outcome o = place_.run({"report", "a"});
    EXPECT_EQ(o.code, 0) << o.err;
  }
  const Outcome o = place_.run({"report", "a", "--output", "/dev/stdout"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.out.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(o.out.find("/dev/stdout: 1 run, "), std::string::npos);
  EXPECT_EQ(place_.run({"report", "a", "--output", "/dev/null"}).code, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace megatron::testing
