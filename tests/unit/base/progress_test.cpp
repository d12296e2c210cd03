#include "base/progress.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/columns.h"
#include "base/log.h"

namespace megatron {
namespace {

// A clock that only advances when it is moved.
struct Watch {
  Progress::Time now{};
  void wait(double seconds) {
    now += std::chrono::duration_cast<Progress::Time::duration>(
        std::chrono::duration<double>(seconds));
  }
  Progress::Clock clock() {
    return [this] { return now; };
  }
};

// Standard error as a terminal of the given width.
class Terminal {
 public:
  explicit Terminal(int columns) : saved_(dup(STDERR_FILENO)) {
    int other = -1;
    winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns)};
    EXPECT_EQ(openpty(&screen_, &other, nullptr, nullptr, &size), 0);
    fcntl(screen_, F_SETFL, O_NONBLOCK);
    dup2(other, STDERR_FILENO);
    close(other);
  }
  ~Terminal() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    close(screen_);
  }
  void resize(int columns) {
    winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns)};
    ioctl(screen_, TIOCSWINSZ, &size);
  }
  std::string printed() {
    std::string text;
    char part[4096];
    for (ssize_t n; (n = read(screen_, part, sizeof part)) > 0;) text.append(part, part + n);
    return text;
  }

 private:
  int saved_, screen_ = -1;
};

// Returns the states drawn over each other.
std::vector<std::string> states(const std::string& printed) {
  std::vector<std::string> all;
  size_t begin = 0;
  for (size_t at; (at = printed.find("\x1b[K", begin)) != printed.npos; begin = at + 3) {
    std::string state = printed.substr(begin, at - begin);
    std::erase_if(state, [](char c) { return c == '\r' || c == '\n'; });
    all.push_back(state);
  }
  return all;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

TEST(Progress, OutsideATerminalALineAMinuteAtMost) {
  Watch watch;
  ::testing::internal::CaptureStderr();
  {
    Progress progress("read", 600, "docs", 0, watch.clock());
    for (int i = 1; i <= 300; ++i) {
      watch.wait(1);
      progress.update(i, "a.jsonl");
    }
    progress.finish("done");
    progress.finish();
    progress.update(3000);
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  const std::vector<std::string> lines = lines_of(text);
  ASSERT_EQ(lines.size(), 6u) << text;  // five minutes, and the end
  EXPECT_EQ(lines[0], "read:  10%  60/600 docs  1 docs/s  9m00s left  a.jsonl");
  EXPECT_EQ(lines[5], "read:  50%  300/600 docs  1 docs/s  in 5m00s  done");
  EXPECT_EQ(text.find_first_of("\r\x1b["), text.npos) << text;
}

TEST(Progress, OutsideATerminalShortWorkSaysOnlyWhatItGot) {
  Watch watch;
  ::testing::internal::CaptureStderr();
  for (const char* result : {"", "12 documents"}) {
    Progress progress("training", 40, "steps", 0, watch.clock());
    for (int i = 0; i < 59; ++i) {
      watch.wait(1);
      progress.update(i);
    }
    progress.finish(result);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "training: 100%  58/40 steps  0.98 steps/s  in 59s  12 documents\n");
}

// A resumed run: earlier work took no time in this run.
TEST(Progress, WhatWasDoneBeforeIsNotInTheRate) {
  ::testing::internal::CaptureStderr();
  {
    Progress("training", 2000, "steps", 1000).finish("x");
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("training:  50%  1.0k/2.0k steps  0 steps/s"), 0u) << text;
}

TEST(Progress, StrangeTotals) {
  for (const int64_t total : {-1, 0, 5}) {
    ::testing::internal::CaptureStderr();
    {
      Progress progress("x", total, "MB");
      progress.update(10);
      progress.finish("y");
    }
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find("10"), std::string::npos) << text;
    EXPECT_EQ(text.find("200%"), std::string::npos) << text;
  }
}

// Draws one state of a run on a terminal of the given width.
std::string drawn(int columns, const std::string& label, const std::string& text) {
  Watch watch;
  Terminal terminal(columns);
  Progress progress(label, 1000, "steps", 0, watch.clock());
  watch.wait(417);
  progress.update(500, text);
  const std::vector<std::string> all = states(terminal.printed());
  EXPECT_EQ(all.size(), 1u);
  return all.empty() ? "" : all[0];
}

TEST(Progress, EachWidthKeepsTheText) {
  const std::string loss = "loss 5.4321 | 123.4k tokens/s";
  EXPECT_EQ(
      drawn(130, "training", loss),
      "training [============            ]  50%  500/1.0k steps  1.2 steps/s  6m57s left  " + loss);
  EXPECT_EQ(drawn(80, "training", loss), "training  50%  500/1.0k steps  6m57s left  " + loss);
  EXPECT_EQ(drawn(60, "training", loss), "training  50%  6m57s left  " + loss);
  EXPECT_EQ(drawn(36, "training", loss), "  50%  " + loss.substr(0, 28));
  for (int columns = 2; columns <= 140; ++columns) {
    const std::string line = drawn(columns, "training", loss);
    EXPECT_LT(display_columns(line), columns) << line;
    EXPECT_TRUE(columns < 28 || line.find("loss 5.4321") != line.npos) << columns << line;
  }
}

TEST(Progress, WideAndControlCharactersStayInTheLine) {
  for (const std::string text :
       {"語料庫/第一部分.jsonl 語料庫語料庫語料庫語料庫語料庫", "a\nb\x1b[2Jc",
        "e\xcc\x81\xcc\x81 \xf0\x9f\x98\x80\xf0\x9f\x98\x80 \xe8\xaa"}) {
    for (int columns = 20; columns <= 130; columns += 5) {
      const std::string line = drawn(columns, "讀取", text);
      EXPECT_LT(display_columns(line), columns) << line;
      EXPECT_EQ(line.find('\x1b'), line.npos);
    }
  }
}

TEST(Progress, FollowsTheTerminalsSize) {
  Watch watch;
  Terminal terminal(120);
  Progress progress("training", 1000, "steps", 0, watch.clock());
  for (const int columns : {120, 50, 100}) {
    terminal.resize(columns);
    watch.wait(1);
    progress.update(columns, "loss 5.4321");
    const std::vector<std::string> all = states(terminal.printed());
    ASSERT_EQ(all.size(), 1u);
    EXPECT_LT(display_columns(all[0]), columns);
    EXPECT_NE(all[0].find("loss 5.4321"), std::string::npos) << all[0];
  }
  for (int i = 0; i < 100; ++i) {
    watch.wait(0.01);
    progress.update(200 + i);
  }
  EXPECT_LE(states(terminal.printed()).size(), 11u);  // ten a second
}

// The remainder of the bar's line is cleared, and the next text has its own line.
TEST(Progress, ALogLineCoversTheBar) {
  int screen = -1;
  const pid_t child = forkpty(&screen, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    Watch watch;
    Progress progress("training", 1000, "steps", 0, watch.clock());
    watch.wait(1);
    progress.update(500, "loss 5.4321");
    log::info("saved");
    std::_Exit(0);
  }
  std::string printed;
  char part[4096];
  for (ssize_t n; (n = read(screen, part, sizeof part)) > 0;) printed.append(part, part + n);
  close(screen);
  waitpid(child, nullptr, 0);
  const size_t bar = printed.find("loss 5.4321\x1b[K\r"), line = printed.find("\x1b[K", bar + 15);
  ASSERT_NE(bar, printed.npos) << printed;
  EXPECT_EQ(line, bar + 15) << printed;
  EXPECT_NE(printed.find(" saved", line), printed.npos) << printed;
}

TEST(Columns, AreThoseOfATerminal) {
  EXPECT_EQ(display_columns(""), 0);
  EXPECT_EQ(display_columns("loss 5.4"), 8);
  EXPECT_EQ(display_columns("é"), 1);
  EXPECT_EQ(display_columns("e\xcc\x81"), 1);  // with a combining accent
  EXPECT_EQ(display_columns("中文ｆ"), 6);
  EXPECT_EQ(display_columns("\xf0\x9f\x98\x80"), 2);
  EXPECT_EQ(display_columns("\xff\xe4\xb8"), 2);  // no characters
  EXPECT_EQ(cut_columns("中文", 3), "中");
  EXPECT_EQ(cut_columns("abc", 5), "abc");
  EXPECT_EQ(cut_columns("abc", 0), "");
  EXPECT_EQ(without_controls("a\tb\x7f中"), "a?b?中");
}

}  // namespace
}  // namespace megatron
