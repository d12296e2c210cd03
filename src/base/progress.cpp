#include "base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace megatron {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kTerminalInterval{0.1};
constexpr Seconds kPlainInterval{5};
constexpr int kBarCells = 24;

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The first `columns` characters of UTF-8 text.
std::string_view cut(std::string_view text, int columns) {
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xc0) != 0x80 && columns-- == 0) return text.substr(0, i);
  }
  return text;
}

// A value under 1000 with its unit: the smallest step of `units` (each 1000 times the one before)
// that holds it rounded.
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

Progress::Progress(std::string label, int64_t total, std::string unit, int64_t before)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      before_(before),
      done_(before),
      terminal_(::isatty(STDERR_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()),
      drawn_(begin_) {}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a line that cannot be drawn is no reason to stop the work
  }
}

void Progress::update(int64_t done, std::string_view text) {
  if (finished_) return;
  done_ = done;
  text_ = text;
  const auto now = std::chrono::steady_clock::now();
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
  if (!text.empty()) text_ = text;
  draw(true);
}

void Progress::draw(bool last) {
  const double elapsed = Seconds(std::chrono::steady_clock::now() - begin_).count();
  const double rate = elapsed > 0 ? static_cast<double>(done_ - before_) / elapsed : 0;
  // Bytes carry their own unit: 1.4 MB.
  const bool bytes = unit_ == "B";
  const auto amount = [bytes](double value) {
    return bytes ? format_bytes(value) : format_count(value);
  };
  const std::string unit = bytes ? "" : " " + unit_;
  std::string line = label_;
  if (total_ > 0) {
    const double share =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    const auto cells = static_cast<size_t>(share * kBarCells);
    line +=
        fmt::format(" [{}{}] {:3.0f}%  {}/{}{}", std::string(cells, '='),
                    std::string(kBarCells - cells, ' '), std::floor(share * 100),
                    amount(static_cast<double>(done_)), amount(static_cast<double>(total_)), unit);
  } else {
    line += fmt::format("  {}{}", amount(static_cast<double>(done_)), unit);
  }
  line += fmt::format("  {}{}/s", amount(rate), unit);
  if (last) {
    line += fmt::format("  in {}", format_duration(elapsed));
  } else if (total_ > 0 && rate > 0) {
    line += fmt::format(
        "  {} left",
        format_duration(static_cast<double>(std::max<int64_t>(total_ - done_, 0)) / rate));
  }
  if (!text_.empty()) line += "  " + text_;
  if (terminal_) {
    line = fmt::format("\r{}\x1b[K{}", cut(line, terminal_columns() - 1), last ? "\n" : "");
  } else {
    line += '\n';
  }
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
