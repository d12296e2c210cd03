// progress.txt: the values from which a job continues.
#include "report/log/progress_file.h"

#include <gtest/gtest.h>

#include <ctime>

#include "unit/report/log_support.h"

namespace megatron::report {
namespace {

std::string progress_line(const std::string& time, int ranks, const std::string& rest) {
  return time + "\tJob ID: 7\t# GPUs: " + std::to_string(ranks) + "\t" + rest + "\n";
}

std::string saved(const std::string& flops) {
  return "Saved checkpoint\tIteration: 10\tJob throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: "
         "1.0 TFLOP/s/GPU\tFloating-point operations: " +
         flops + "\tTokens (in billions): 0.10";
}

TEST(ProgressFile, CountsFromTheFirstOfTheLastJobsWithAsManyRanks) {
  const std::string text = progress_line("2026-01-01 10:00:00", 4, "Starting job") +
                           progress_line("2026-01-01 11:00:00", 4, saved("1.00e+15")) +
                           progress_line("2026-01-01 12:00:00", 8, "Starting job") +
                           progress_line("2026-01-01 13:00:00", 8, saved("3.00e+15")) +
                           progress_line("2026-01-01 14:00:00", 4, "Starting job") +
                           "broken line\n" +
                           progress_line("2026-01-01 14:30:00", 4, saved("4.00e+15")) +
                           progress_line("2026-01-01 15:00:00", 4, "Starting job");
  const report::ProgressStart start = report::progress_start(text, 4);
  EXPECT_TRUE(start.found);
  EXPECT_EQ(start.flops, 3e15);
  const auto time = static_cast<std::time_t>(start.time);
  std::tm local{};
  localtime_r(&time, &local);
  EXPECT_EQ(local.tm_hour, 14);
  EXPECT_EQ(local.tm_min, 0);
  EXPECT_FALSE(report::progress_start(text, 8).found) << "4 ranks came after them";
  EXPECT_FALSE(report::progress_start("", 4).found);
}

TEST(ProgressFile, AppendsLines) {
  const log_test::TemporaryDirectory folder;
  report::ProgressFile(folder.path(), 2, 0).saved(5, 6e15, 2e9);
  const std::string text = read_file(folder / "progress.txt");
  EXPECT_NE(text.find("\t# GPUs: 2\tStarting job\n"), text.npos) << text;
  EXPECT_NE(text.find("\tSaved checkpoint\tIteration: 5\tJob throughput: "), text.npos) << text;
  EXPECT_NE(text.find("\tFloating-point operations: 6.00e+15\tTokens (in billions): 2.00\n"),
            text.npos)
      << text;
  EXPECT_THROW(report::ProgressFile("/proc/no/such", 1, 0), Error);
}

}  // namespace
}  // namespace megatron::report
