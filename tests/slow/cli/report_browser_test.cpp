// The report in a browser: it draws, and its console stays empty. The content security policy
// forbids network requests, and the browser would report them on the console.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "golden/cli/process.h"
#include "slow/browser.h"
#include "unit/report/report_log.h"

namespace megatron::testing {
namespace {

using report::line;
using report::run_line;
using report::step_line;

struct Shown {
  std::string page, console;  // the page after its script has run
};

class ReportInBrowser : public ::testing::Test {
 protected:
  void SetUp() override {
    browser_ = browser_program();
    if (browser_.empty()) GTEST_SKIP() << "there is no chromium on this machine";
  }

  Shown show(const std::string& file, const std::string& flags = "") {
    const std::string command = fmt::format(
        "cd {0} && HOME={0} timeout 120 {1} --headless --no-sandbox --disable-gpu "
        "--user-data-dir={0}/profile --enable-logging=stderr --virtual-time-budget=5000 {2} "
        "--dump-dom file://{0}/{3} >dom 2>messages",
        place_.path(), browser_, flags, file);
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(place_ / "messages");
    Shown shown{read_file(place_ / "dom"), ""};
    const std::string messages = read_file(place_ / "messages");
    for (size_t at = messages.find("CONSOLE"); at != messages.npos;
         at = messages.find("CONSOLE", at + 1))
      shown.console += messages.substr(at, messages.find('\n', at) - at) + "\n";
    return shown;
  }

  std::string report(const std::vector<std::string>& runs) {
    std::vector<std::string> words = {"report"};
    words.insert(words.end(), runs.begin(), runs.end());
    const Outcome o = place_.run(words);
    EXPECT_EQ(o.code, 0) << o.err;
    return "report.html";
  }

  std::string run(const std::string& name, int steps) {
    std::string log = run_line(0, 1000);
    for (int i = 1; i <= steps; ++i) {
      if (i == steps / 2) log += run_line(i - 1, 1000.0 + i);
      log += step_line(i, 1000.0 + i, i % 97 == 5 ? "null" : fmt::format("{}", 2 + 9.0 / i));
      if (i % 10 == 0) log += line("validation", i, "\"set\":\"valid\",\"loss\":3");
      if (i % 50 == 0)
        log += line("sample", i, R"("prompt":"<b>","text":"</script><script>alert(1)</script>")");
    }
    if (steps > 1) log += line("validation", steps, "\"set\":\"test\",\"loss\":3.5");
    write_file(place_ / (name + "/log.jsonl"), log);
    return name;
  }

  Workplace place_;
  std::string browser_;
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(ReportInBrowser, TheConsoleTellsOfErrorsAndRequests) {
  write_file(
      place_ / "bad.html",
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
      "'unsafe-inline'\"><img src=\"http://127.0.0.1:9/x\"><script>missing()</script>");
  const std::string console = show("bad.html").console;
  EXPECT_NE(console.find("missing is not defined"), std::string::npos) << console;
  EXPECT_NE(console.find("Content Security Policy"), std::string::npos) << console;
}

TEST_F(ReportInBrowser, DrawsWithoutAWord) {
  struct Case {
    std::vector<std::string> runs;
    size_t least_lines;
  };
  for (const Case& c :
       {Case{{run("long", 30000)}, 7}, Case{{run("a", 300), run("b", 200), run("c", 7)}, 15},
        Case{{run("one", 1)}, 3}, Case{{run("none", 0)}, 0}}) {
    for (const char* flags :
         {"--window-size=1440,900", "--window-size=390,844 --force-dark-mode"}) {
      const Shown shown = show(report(c.runs), flags);
      EXPECT_EQ(shown.console, "") << c.runs[0];
      EXPECT_GE(count_of(shown.page, "<path class=\"line"), c.least_lines) << c.runs[0];
      EXPECT_NE(shown.page.find("<figcaption>Loss"), std::string::npos) << c.runs[0];
      // One mark per run and one in the legend.
      const size_t marks = c.least_lines >= 7 ? c.runs.size() + 1 : 0;
      EXPECT_EQ(count_of(shown.page, "<rect class=\"test-point\""), marks) << c.runs[0];
      EXPECT_EQ(count_of(shown.page, "</svg>test set</span>"), marks == 0 ? 0u : 1u);
    }
  }
}

}  // namespace
}  // namespace megatron::testing
