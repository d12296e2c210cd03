// PyPI's tensorboard reads the event files of a run.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "report/log/run_log.h"
#include "unit/report/log_support.h"

namespace megatron::training {
namespace {

using namespace report::log_test;
using report::log_test::TemporaryDirectory;

const std::string kReader = MEGATRON_TEST_SOURCES "/slow/training/tensorboard_read.py";

bool succeeds(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Returns a command's standard output; the test fails if the command fails.
std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

std::string from_hexadecimal(const std::string& digits) {
  std::string text;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    text += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return text;
}

struct Board {
  std::map<std::string, std::map<int64_t, float>> scalars;
  std::map<std::string, std::map<int64_t, std::string>> texts;
  size_t points = 0;  // a step that occurs twice counts twice
};

Board read_board(const std::string& python, const std::string& folder, const std::string& reader) {
  Board board;
  std::istringstream lines(output_of(python + " " + kReader + " " + folder + " " + reader));
  std::string kind, tag, value;
  for (int64_t step = 0; lines >> kind >> tag >> step; ++board.points) {
    std::getline(lines, value);
    value.erase(0, 1);
    if (kind == "text") {
      board.texts[tag][step] = from_hexadecimal(value);
    } else {
      board.scalars[tag][step] =
          std::bit_cast<float>(static_cast<uint32_t>(std::stoul(value, nullptr, 16)));
    }
  }
  return board;
}

// Losses of a run that was killed at step 30 and resumed from 20, with other losses the second
// time.
float loss_of(int64_t iteration, bool resumed) {
  return static_cast<float>((resumed ? 1.0 / 3 : 1.0 / 7) + static_cast<double>(iteration));
}

void write_run(const report::LogSettings& settings, int64_t first, int64_t last) {
  report::RunLog log(settings, "", some_run(first), nullptr);
  for (int64_t i = first + 1; i <= last; ++i) {
    report::StepRecord record = some_step(i);
    record.loss = (first > 0 ? 1.0 / 3 : 1.0 / 7) + static_cast<double>(i);
    log.step(record);
    if (i % 5 != 0) continue;
    log.validation({i, "valid", 2, 100});
    log.sample({i, "Once", " upon \xc3\xa9\xff\n*a* time"});
  }
}

void check_points(const std::map<int64_t, float>& points, int64_t scale) {
  ASSERT_EQ(points.size(), 40u);
  for (int64_t i = 1; i <= 40; ++i) {
    ASSERT_TRUE(points.contains(scale * i)) << i;
    EXPECT_EQ(points.at(scale * i), loss_of(i, i > 20)) << i;
  }
}

void check_boards(const std::string& python, const std::string& folder, const std::string& reader) {
  SCOPED_TRACE(reader);
  Board board = read_board(python, folder, reader);
  check_points(board.scalars.at("lm_loss"), 1);
  EXPECT_EQ(board.scalars.at("learning-rate").at(40), 1e-3f);
  EXPECT_EQ(board.scalars.at("grad-norm").at(17), static_cast<float>(0.1 + 0.2));
  EXPECT_EQ(board.scalars.at("mem-optimizer-bytes").at(1), 3);
  EXPECT_EQ(board.scalars.at("lm_loss_validation").size(), 8u);
  EXPECT_EQ(board.texts.at("sample").size(), 8u);
  EXPECT_EQ(board.texts.at("sample").at(25), "    Once upon \xc3\xa9\xef\xbf\xbd\n    *a* time");
  EXPECT_EQ(board.texts.at("configuration").size(), 2u);  // from both parts of the run
  EXPECT_NE(board.texts.at("configuration").at(20).find("| --lr | 3e-3 |"), std::string::npos);
  // Nothing occurs twice, except that the script's reader does not drop old texts.
  size_t points = reader == "accumulator" ? 2 : 0;
  for (const auto& [unused, steps] : board.scalars) points += steps.size();
  for (const auto& [unused, steps] : board.texts) points += steps.size();
  EXPECT_EQ(board.points, points);

  board = read_board(python, folder + "/vs_samples", reader);
  check_points(board.scalars.at("lm_loss_vs_samples"), 8);
  EXPECT_EQ(board.scalars.at("lm_loss_validation_vs_samples").size(), 8u);
}

TEST(TensorBoardPackage, ReadsScalarsAndTextsAndForgetsWhatAResumedRunTookBack) {
  const TemporaryDirectory folder;
  const std::string python = folder / "venv/bin/python";
  if (!succeeds("python3 -m venv " + (folder / "venv") + " >" + (folder / "log") + " 2>&1 && " +
                python + " -m pip install -q tensorboard setuptools >>" + (folder / "log") +
                " 2>&1")) {
    GTEST_SKIP() << "python3 -m venv and pip install tensorboard did not succeed here (they need "
                    "python3-venv and PyPI): "
                 << read_file(folder / "log");
  }
  report::LogSettings settings;
  settings.tensorboard_dir = folder / "board";
  ::testing::internal::CaptureStdout();
  write_run(settings, 0, 30);
  write_run(settings, 20, 40);
  ::testing::internal::GetCapturedStdout();

  check_boards(python, folder / "board", "plugin_accumulator");
  check_boards(python, folder / "board", "accumulator");
}

}  // namespace
}  // namespace megatron::training
