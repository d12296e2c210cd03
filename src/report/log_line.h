// Parses one line of a run's log.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "report/history.h"

namespace megatron::report {

// A million steps are a million lines, so step records use a fast parser.
class LogLineParser {
 public:
  LogLineParser();
  ~LogLineParser();

  // Parses a line. Bytes in texts that are not UTF-8 are replaced. Throws Error with the reason why
  // it is not a record: bad JSON, no "type", a step without an iteration, a value that is not a
  // number.
  void parse(std::string_view line);

  // Fields of the line read last. Without a time it is NaN, without an iteration 0.
  const std::string& type() const { return type_; }
  double time() const { return time_; }
  double iteration() const { return row_[kIteration]; }
  // A step: its row, without kElapsed.
  std::array<double, kStepColumns>& row() { return row_; }
  bool has(std::string_view key) const;
  std::string_view line() const { return line_; }
  Json record() const;  // the whole line

 private:
  struct State;
  void read_step();

  std::unique_ptr<State> state_;
  std::string repaired_;
  std::string_view line_;
  std::string type_;
  double time_ = 0;
  std::array<double, kStepColumns> row_{};
};

}  // namespace megatron::report
