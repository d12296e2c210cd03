// The page: text from a log cannot escape its place, and the page loads nothing.
#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"
#include "report/markup.h"
#include "report/page.h"
#include "text.h"
#include "unit/report/report_log.h"

namespace megatron::report {
namespace {

using testing::has;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string page_of(const std::vector<std::string>& runs) {
  return report::report_page(report::read_histories(runs), "");
}

std::string plain_log() {
  std::string log = run_line(0, 1000);
  for (int i = 1; i <= 5; ++i) log += step_line(i, 1000 + i, fmt::format("{}.5", 9 - i));
  return log + line("validation", 5, "\"set\":\"valid\",\"loss\":4.0") +
         line("save", 5,
              "\"path\":\"a/iter_0000005\",\"bytes\":2000000,\"seconds\":1.5,\"wait\":0.25") +
         line("sample", 5, "\"prompt\":\"To be\",\"text\":\", or not\"") +
         line("note", 5, "\"level\":\"warning\",\"text\":\"slow disk\"") +
         line("end", 5, "\"reason\":\"done\",\"text\":\"\"");
}

TEST(ReportPage, HasATableOfMetricsByLayerOfTheLastStep) {
  const LogFolder folder;
  const auto step = [](int iteration, const std::string& metrics) {
    return line("step", iteration, "\"loss\":5.0,\"layer_metrics\":" + metrics);
  };
  const std::string page = page_of({folder.run(
      "a", run_line(0, 1000) + step(1, "{\"layer\":[1,4],\"expert_load\":[9.5,9.25]}") +
               step(2, "{\"layer\":[1,4],\"<b>\":[1.25,null],\"expert_load\":[1.5,3.0]}"))});
  EXPECT_TRUE(has(page, "<th scope=\"col\">expert_load</th>"));
  EXPECT_TRUE(has(page,
                  "<th scope=\"row\">4</th><td>–</td><td>3<i class=\"level\" "
                  "style=\"width:100.0%\"></i></td>"));
  EXPECT_TRUE(has(page, "<td>1.5<i class=\"level\" style=\"width:50.0%\"></i></td>"));
  EXPECT_TRUE(has(page, "&lt;b&gt;"));
  EXPECT_TRUE(has(page, "iteration 2"));
  EXPECT_FALSE(has(page, "<td>9.5"));
  for (const char* bad : {"7", "[1]", "{}", "{\"layer\":3}", "{\"layer\":[1],\"x\":5}",
                          "{\"layer\":[1],\"layer\":[2]}"})
    EXPECT_TRUE(
        has(page_of({folder.run("b", run_line(0, 1000) + step(1, bad))}), "Training report"))
        << bad;
  EXPECT_FALSE(has(page_of({folder.run("c", plain_log())}), "Metrics by layer"));
}

TEST(ReportMarkup, EscapesText) {
  EXPECT_EQ(html("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(html(std::string_view("a\0b\x1b\n\x7f", 6)),
            "a\xe2\x90\x80"
            "b\xe2\x90\x9b\n\xe2\x90\xa1");
  EXPECT_EQ(html("\xff"
                 "a\xc3"),
            "\xef\xbf\xbd"
            "a\xef\xbf\xbd");
  EXPECT_EQ(html("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
  EXPECT_EQ(html("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");  // overlong encoding of '/'
  EXPECT_EQ(html("ö 中 \xf0\x9f\x98\x80"), "ö 中 \xf0\x9f\x98\x80");
}

TEST(ReportMarkup, ScriptStringsEndNoScript) {
  const std::string hostile = "</script><!--\xe2\x80\xa8\xe2\x80\xa9 & \"quoted\" \\";
  const std::string text = report::script_string(hostile);
  EXPECT_EQ(text.find_first_of("<>&"), text.npos) << text;
  EXPECT_FALSE(has(text, "\xe2\x80\xa8"));
  EXPECT_EQ(Json::parse(text).as_string(), hostile);
  EXPECT_EQ(Json::parse(report::script_string("\xff")).as_string(), "\xef\xbf\xbd");
}

TEST(ReportMarkup, WritesNumbersAsPeopleExpect) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(report::script_numbers({1, 2.5, none}, 4), "[1,2.5,null]");
  EXPECT_EQ(report::script_numbers({3, 3, 3}, 4), "3");
  EXPECT_EQ(report::script_numbers({none, none}, 4), "null");
  EXPECT_EQ(report::script_numbers({}, 4), "null");
  EXPECT_EQ(report::script_numbers({std::numeric_limits<double>::infinity(), 1}, 4), "[null,1]");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(count(8192), "8.19k");
  EXPECT_EQ(count(124439808), "124.4M");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(count(7e9), "7.00B");
  EXPECT_EQ(duration(18.4 * 86400), "18d09h");
  EXPECT_EQ(percent(0.4134), "41.3 %");
  EXPECT_EQ(flops(1.236e12), "1.24 TFLOP/s");
  EXPECT_EQ(moment(0), "–");
  EXPECT_EQ(moment(1763717107), "2025-11-21 09:25:07");
}

TEST(ReportPage, AsksNobodyForAnything) {
  const LogFolder folder;
  const std::string page = page_of({folder.run("a", plain_log()), folder.run("b", plain_log())});
  for (const char* part : {"http://", "https://", "src=", "@import", "url(", "<link rel=\"style",
                           "fetch(", "XMLHttpRequest", "WebSocket", "import("})
    EXPECT_FALSE(has(page, part)) << part;
  EXPECT_TRUE(has(page, "default-src 'none'"));
  EXPECT_LT(page.size(), 100000u);
}

TEST(ReportPage, HoldsWhatTheLogTellsWithoutScripts) {
  const LogFolder folder;
  const std::string page = page_of({folder.run("first", plain_log())});
  for (const char* part :
       {"<title>first</title>", "<noscript>", "4.5000", "4.0000", "iter_0000005", "2.0 MB",
        "1.50 s", "0.25 s", "<span class=\"prompt\">To be</span>, or not", "slow disk", "--lr",
        "parameters", "status done"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_FALSE(has(page, "{{"));
}

TEST(ReportPage, HostileTextStaysText) {
  const std::string attack = "</script></style></title>\\\"'><img onerror=x()>\xff\xe2\x80\xa8";
  const std::string quoted = Json(printable(attack)).dump();
  std::string log = fmt::format(
      "{{\"type\":\"run\",\"schema\":1,\"time\":1,\"iteration\":0,\"version\":{0},\"host\":{0},"
      "\"command\":[{0}],\"flags\":{{{0}:{0}}},\"machine\":{{{0}:{0}}},\"precision\":{0},"
      "\"layout\":{{\"ranks\":{0}}},\"flop_formula\":{0}}}\n",
      quoted);
  log += step_line(1, 2, "1.0");
  log += line("validation", 1, "\"set\":" + quoted + ",\"loss\":1");
  log += line("save", 1, "\"path\":" + quoted);
  log += line("sample", 1, "\"prompt\":" + quoted + ",\"text\":" + quoted);
  log += line("note", 1, "\"level\":" + quoted + ",\"text\":" + quoted);
  log += line("end", 1, "\"reason\":" + quoted + ",\"text\":" + quoted);
  const LogFolder folder;
  const std::string one = folder.run("</title>\"<b>", log);
  const report::RunHistory history = report::read_history(one, 10);
  EXPECT_EQ(history.damaged, 0);
  for (const std::string& page : {page_of({one}), page_of({one, folder.run("b", log)}),
                                  report::report_page(report::read_histories({one}), attack)}) {
    EXPECT_FALSE(has(page, "<img"));
    EXPECT_FALSE(has(page, "<b>\"")) << "the run's name";
    EXPECT_EQ(count_of(page, "</script>"), 2u);
    EXPECT_EQ(count_of(page, "</title>"), 1u);
    EXPECT_EQ(count_of(page, "</style>"), 1u);
    EXPECT_FALSE(has(page, "\xff"));
    EXPECT_TRUE(has(page, "&lt;img onerror=x()&gt;"));
  }
}

TEST(ReportPage, LongValuesAreCutBetweenCharacters) {
  for (size_t before = 0; before < 3; ++before) {
    std::string value(before, 'a');
    for (int i = 0; i < 2000; ++i) value += "日";
    const LogFolder folder;
    const std::string page = page_of({folder.run(
        "a", R"({"type":"run","schema":1,"time":1,"iteration":0,"flags":{"data-path":")" + value +
                 "\"}}\n" + step_line(1, 2, "1.0"))});
    EXPECT_TRUE(has(page, "日 …"));
    EXPECT_FALSE(has(page, "\xef\xbf\xbd"));
  }
}

TEST(ReportPage, ComparesRuns) {
  const LogFolder folder;
  std::string other = plain_log();
  other.replace(other.find("0.001"), 5, "0.002");
  const std::string page = page_of({folder.run("a", plain_log()), folder.run("b", other)});
  const size_t differs = page.find("What differs"), command = page.find("<h3>Sessions");
  ASSERT_NE(differs, page.npos);
  const std::string part = page.substr(differs, command - differs);
  EXPECT_TRUE(has(part, "--lr"));
  EXPECT_TRUE(has(part, "<td>0.001</td><td>0.002</td>")) << part;
  EXPECT_FALSE(has(part, "train_iters"));
}

TEST(ReportPage, TellsWhatChangedBetweenSessions) {
  const LogFolder folder;
  std::string second = run_line(5, 3000);
  second.replace(second.find("0.001"), 5, "0.004");
  const std::string page = page_of({folder.run("a", plain_log() + second)});
  EXPECT_TRUE(has(page, "<code>--lr</code> 0.001 → 0.004"));
}

// A setting that is both a flag and a fact of the run is shown once.
TEST(ReportPage, ASettingIsListedOnce) {
  const LogFolder folder;
  const auto with_iters = [](std::string line, const std::string& iters) {
    line.replace(line.find("\"lr\":\"0.001\""), 12, "\"train-iters\":\"" + iters + "\"");
    return line.replace(line.find("\"train_iters\":100"), 17, "\"train_iters\":" + iters);
  };
  const std::string log = with_iters(run_line(0, 1000), "4") + step_line(4, 1004, "2"),
                    longer = with_iters(run_line(4, 3000), "6") + step_line(5, 3001, "2");
  const std::string page = page_of({folder.run("a", log + longer), folder.run("b", log)});
  EXPECT_TRUE(has(page, "<code>--train-iters</code> 4 → 6"));
  EXPECT_TRUE(has(page, "<td>6</td><td>4</td>"));
  EXPECT_FALSE(has(page, "<code>train_iters</code> 4 → 6"));
}

TEST(ReportPage, RestartsAreSessionsThatTrained) {
  const LogFolder folder;
  const std::string found_done = run_line(3, 2000) + line("end", 3, "\"reason\":\"done\"");
  EXPECT_TRUE(has(page_of({folder.run("a", plain_log() + found_done)}), "no restart"));
  const std::string resumed = run_line(3, 3000) + step_line(4, 3001, "2");
  EXPECT_TRUE(has(page_of({folder.run("b", plain_log() + found_done + resumed)}), "1 restart"));
}

TEST(ReportPage, DataOfTheCurvesIsJson) {
  const LogFolder folder;
  const auto histories = report::read_histories(
      {folder.run("a", plain_log() + run_line(3, 2000) + step_line(4, 2001, "null"))});
  const Json data = Json::parse(curve_data(histories));
  const Json& run = data.as_array().at(0);
  EXPECT_EQ(run["name"].as_string(), "a");
  EXPECT_EQ(run["restarts"], Json(Json::Array{3}));
  EXPECT_EQ(run["steps"]["rows"].as_integer(), 4);
  EXPECT_EQ(run["steps"]["iteration"].as_array().size(), 4u);
  EXPECT_TRUE(run["steps"]["loss"].as_array().at(3).is_null());
  EXPECT_EQ(run["steps"]["gradient_norm"].as_number(), 1.5);  // equal in all rows
  EXPECT_TRUE(run["steps"]["data_wait"].is_null());
  EXPECT_TRUE(run["means"].is_null());
}

// The legend has an entry for each mark of a chart.
TEST(ReportPage, TheLegendNamesEveryMark) {
  const LogFolder folder;
  const std::string page = page_of({folder.run("a", run_line(0, 1000))});
  const std::string legend = page.substr(page.find("function add_key()"));
  for (const std::string mark :
       {"'line'", "'line raw'", "'line validation'", "'validation-point'", "'test-point'"})
    EXPECT_TRUE(has(legend, "class: " + mark)) << mark;
  for (const std::string text :
       {"smoothed", "as logged", "validation", "test set", "checkpoint", "restart"})
    EXPECT_TRUE(has(legend, "entry('" + text + "'")) << text;
  EXPECT_TRUE(report::is_report_page(page));
  EXPECT_FALSE(report::is_report_page("<!DOCTYPE html>\n<p>another page</p>"));
}

TEST(ReportPage, EmptyLogsMakeAPage) {
  const LogFolder folder;
  const std::string page = page_of({folder.run("a", run_line(0, 1000))});
  EXPECT_TRUE(has(page, "The log contains no generated text."));
  EXPECT_TRUE(has(page, "The log contains no checkpoints."));
  EXPECT_TRUE(has(page, "no validation"));
}

}  // namespace
}  // namespace megatron::report
