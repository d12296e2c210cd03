// Progress of long work on standard error: on a terminal a line that is redrawn in place (at most
// ten times a second) with bar, share, rate, time left and a free text; elsewhere plain lines
// without a bar, at most one per minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace megatron {

class Progress {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Clock = std::function<Time()>;

  // total < 0: unknown. unit: "docs", "steps" ...; "B" is scaled to kB, MB ... before: part of the
  // total done by earlier work, which does not count in the rate. clock: for tests.
  Progress(std::string label, int64_t total, std::string unit, int64_t before = 0,
           Clock clock = std::chrono::steady_clock::now);
  ~Progress();  // finishes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // text: shown on a narrow terminal in preference to the rest.
  void update(int64_t done, std::string_view text = {});
  // Draws the last state and ends the line. Not on a terminal: prints a plain last line if there is
  // a text (the result of the work) or plain lines were printed before.
  void finish(std::string_view text = {});
  // Prints a separate line above the bar.
  void print(std::string_view line, std::FILE* to = stdout);

 private:
  struct Parts;
  Parts parts(bool last) const;
  std::string bar_line(bool last, int columns) const;
  std::string plain_line(bool last) const;
  void draw(bool last);

  std::string label_, unit_, text_;
  int64_t total_, before_, done_;
  bool terminal_, finished_ = false, updated_ = false;
  Clock clock_;
  Time begin_, drawn_;
};

std::string format_duration(double seconds);  // "42s", "3m05s", "2h07m"
std::string format_bytes(double bytes);       // "512 B", "1.4 MB"
std::string format_count(double count);       // "812", "1.3k", "4.2M"

}  // namespace megatron
