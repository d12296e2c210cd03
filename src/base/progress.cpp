#include "base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/columns.h"

namespace megatron {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kTerminalInterval{0.1};
constexpr Seconds kPlainInterval{60};
constexpr int kBarCells = 24, kMinBarCells = 8;
constexpr int kTextColumns = 40;  // columns reserved for the text; other parts give way to it

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A value under 1000 with its unit: the smallest of `units` (each 1000 times the previous one) that
// represents the value after rounding.
struct Scaled {
  double value;
  size_t unit;
};
Scaled scale(double value, size_t units, double limit) {
  size_t unit = 0;
  while (unit + 1 < units && std::abs(value) >= (unit == 0 ? 999.5 : limit)) {
    value /= 1000;
    ++unit;
  }
  return {value, unit};
}

}  // namespace

Progress::Progress(std::string label, int64_t total, std::string unit, int64_t before, Clock clock)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      before_(before),
      done_(before),
      terminal_(::isatty(STDERR_FILENO) == 1),
      clock_(std::move(clock)),
      begin_(clock_()),
      drawn_(begin_) {}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a line that cannot be drawn must not stop the work
  }
}

void Progress::update(int64_t done, std::string_view text) {
  if (finished_) return;
  done_ = done;
  text_ = without_controls(text);
  const Time now = clock_();
  if (now - drawn_ < (terminal_ ? kTerminalInterval : kPlainInterval)) return;
  drawn_ = now;
  draw(false);
}

void Progress::print(std::string_view line, std::FILE* to) {
  if (terminal_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }
  std::fwrite(line.data(), 1, line.size(), to);
  std::fputc('\n', to);
  std::fflush(to);
  if (terminal_ && !finished_) draw(false);
}

void Progress::finish(std::string_view text) {
  if (finished_) return;
  finished_ = true;
  if (!text.empty()) text_ = without_controls(text);
  if (terminal_ || updated_ || !text.empty()) draw(true);
}

// All texts except the bar; the second to the last begin with a space, or are empty.
struct Progress::Parts {
  std::string label, share, amounts, rate, time;
};

Progress::Parts Progress::parts(bool last) const {
  const double elapsed = Seconds(clock_() - begin_).count();
  const double speed = elapsed > 0 ? static_cast<double>(done_ - before_) / elapsed : 0;
  // Bytes include their own unit: 1.4 MB.
  const bool bytes = unit_ == "B";
  const auto amount = [bytes](auto value) {
    const auto number = static_cast<double>(value);
    return bytes ? format_bytes(number) : format_count(number);
  };
  const std::string unit = bytes ? "" : " " + unit_;
  Parts p{.label = label_,
          .share = {},
          .amounts = fmt::format("  {}{}", amount(done_), unit),
          .rate = fmt::format("  {}{}/s", amount(speed), unit),
          .time = {}};
  if (total_ > 0) {
    const double share =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    p.share = fmt::format(" {:3.0f}%", std::floor(share * 100));
    p.amounts = fmt::format("  {}/{}{}", amount(done_), amount(total_), unit);
  }
  if (last) {
    p.time = fmt::format("  in {}", format_duration(elapsed));
  } else if (total_ > 0 && speed > 0) {
    const auto left = static_cast<double>(std::max<int64_t>(total_ - done_, 0));
    p.time = fmt::format("  {} left", format_duration(left / speed));
  }
  return p;
}

// On a narrow terminal the rate is dropped first, then the bar, the amounts, the label and the
// time; only then is the text cut.
std::string Progress::bar_line(bool last, int columns) const {
  Parts p = parts(last);
  const int text = text_.empty() ? 0 : 2 + std::min(display_columns(text_), kTextColumns);
  const auto room = [&] {
    int taken = text;
    for (const std::string* part : {&p.label, &p.share, &p.amounts, &p.rate, &p.time})
      taken += display_columns(*part);
    return columns - taken;
  };
  constexpr int kFrame = 3;  // " [" and "]"
  const bool bar = total_ > 0;
  if (room() < (bar ? kMinBarCells + kFrame : 0)) p.rate.clear();
  const int cells = bar ? std::min(kBarCells, room() - kFrame) : 0;
  for (std::string* part : {&p.amounts, &p.label, &p.time})
    if (room() < 0) part->clear();
  std::string line = p.label;
  if (cells >= kMinBarCells) {
    const double share =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    const auto full = static_cast<size_t>(share * cells);
    line += fmt::format(" [{}{}]", std::string(full, '='),
                        std::string(static_cast<size_t>(cells) - full, ' '));
  }
  line += p.share + p.amounts + p.rate + p.time;
  if (!text_.empty()) line += (line.empty() ? "" : "  ") + text_;
  return std::string(cut_columns(line, columns));
}

std::string Progress::plain_line(bool last) const {
  const Parts p = parts(last);
  return p.label + ":" + p.share + p.amounts + p.rate + p.time +
         (text_.empty() ? "" : "  " + text_);
}

// On a terminal the cursor stays at the beginning of the line, so that other output overwrites the
// bar.
void Progress::draw(bool last) {
  const std::string line =
      terminal_
          ? fmt::format("\r{}\x1b[K{}", bar_line(last, terminal_columns() - 1), last ? '\n' : '\r')
          : plain_line(last) + '\n';
  updated_ = true;
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e12) return "?";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
}

std::string format_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  const auto [value, unit] = scale(bytes, kUnits.size(), 999.95);
  return unit == 0 ? fmt::format("{:.0f} B", value) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_count(double count) {
  constexpr std::array kUnits = {"", "k", "M", "G", "T", "P", "E"};
  const auto [value, unit] = scale(count, kUnits.size(), 999.95);
  if (unit > 0) return fmt::format("{:.1f}{}", value, kUnits[unit]);
  if (std::abs(value) >= 10 || value == std::trunc(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.2g}", value);
}

}  // namespace megatron
