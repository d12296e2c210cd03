// A live progress line on standard error for long work: bar, share, rate, time left and a free
// text. On a terminal it redraws itself in place (at most ten times a second); elsewhere it prints
// a plain line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace megatron {

class Progress {
 public:
  // total < 0: not known. unit: "docs", "steps" ...; "B" is scaled to kB, MB ... before: of the
  // total, done by earlier work; it does not count in the rate.
  Progress(std::string label, int64_t total, std::string unit, int64_t before = 0);
  ~Progress();  // finishes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, std::string_view text = {});
  void finish(std::string_view text = {});  // draws the last state and ends the line
  // A line of its own, above the bar.
  void print(std::string_view line, std::FILE* to = stdout);

 private:
  void draw(bool last);

  std::string label_, unit_, text_;
  int64_t total_, before_, done_;
  bool terminal_, finished_ = false;
  std::chrono::steady_clock::time_point begin_, drawn_;
};

std::string format_duration(double seconds);  // "42s", "3m05s", "2h07m"
std::string format_bytes(double bytes);       // "512 B", "1.4 MB"
std::string format_count(double count);       // "812", "1.3k", "4.2M"

}  // namespace megatron
