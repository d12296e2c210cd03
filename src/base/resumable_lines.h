// JSON lines that a command writes one at a time, in any order, and continues after it was killed.
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

// Line n of `count` is identified by its `number`. Until all lines are complete, they are kept in
// PATH.partial: first a line with `settings`, then the completed lines in the order of their
// completion, which are flushed to the disk every few seconds. commit() writes PATH atomically and
// in order, and removes PATH.partial. Outputs other than regular files (a pipe, /dev/stdout) are
// written at commit() from memory.
class ResumableLines {
 public:
  struct Options {
    // After check_output(); flag is the one that gives the path, "--output".
    std::string path, flag;
    Json settings;  // an object with everything that the lines depend on
    int64_t count = 0;
    // Number of a line that was written earlier. Throws Error if it is not such a line.
    std::function<int64_t(const Json& line)> number;
    std::chrono::seconds sync_interval{5};
  };

  // Continues an existing PATH.partial; an incomplete last line is cut off. Throws Error if its
  // settings differ, naming the differences, and if another process is writing it.
  explicit ResumableLines(Options options);
  ~ResumableLines();  // removes a PATH.partial without lines
  ResumableLines(const ResumableLines&) = delete;
  ResumableLines& operator=(const ResumableLines&) = delete;

  bool has(int64_t number) const { return places_[static_cast<size_t>(number)].has_value(); }
  int64_t done() const { return done_; }
  std::string line(int64_t number) const;  // without its line end
  void append(int64_t number, std::string_view line);
  void commit();  // requires all lines

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
