// JSON lines that a command writes one at a time, in any order, and goes on with after it was killed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace megatron {

// Line n of `count` is the one that `number` names. Until all are there, they lie in PATH.partial: first a line with
// `settings`, then a line of each that is done, whole, one behind the other as they came; every few seconds they are
// flushed to the disk. commit() writes PATH, whole and in order, and removes PATH.partial. What is no regular file (a
// pipe, /dev/stdout) is written at commit() from memory.
class ResumableLines {
 public:
  struct Options {
    std::string path, flag;  // after check_output(); that names it, "--output"
    Json settings;           // an object: all that the lines depend on
    int64_t count = 0;
    // Of a line that was written earlier. Throws Error for what is no such line.
    std::function<int64_t(const Json& line)> number;
    std::chrono::seconds sync_interval{5};
  };

  // Takes up PATH.partial where it is there; what does not end with a whole line is cut off. Throws Error where its
  // settings are others, naming those, and where another process is writing it.
  explicit ResumableLines(Options options);
  ~ResumableLines();  // removes a PATH.partial that has no line
  ResumableLines(const ResumableLines&) = delete;
  ResumableLines& operator=(const ResumableLines&) = delete;

  bool has(int64_t number) const { return places_[static_cast<size_t>(number)].has_value(); }
  int64_t done() const { return done_; }
  std::string line(int64_t number) const;  // without its end
  void append(int64_t number, std::string_view line);
  void commit();  // all lines must be there

 private:
  struct Place {
    int64_t begin = 0, size = 0;
  };

  void open();
  void take_up();
  Json settings_in(std::string_view line) const;
  std::optional<int64_t> number_in(std::string_view line) const;
  void compare(const Json& earlier, int64_t lines) const;
  void begin();
  void sync();

  Options options_;
  std::string partial_;
  std::unique_ptr<OutputFile> file_;  // null: in memory
  std::string memory_;
  int64_t size_ = 0, done_ = 0;
  std::vector<std::optional<Place>> places_;
  std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace megatron
