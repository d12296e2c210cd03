// One line of a run's log.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "report/history.h"

namespace megatron::report {

// A million steps are a million lines, so that those of steps go through a fast parser.
class LogLineParser {
 public:
  LogLineParser();
  ~LogLineParser();

  // Reads a line. Bytes that are not UTF-8 inside of texts are replaced. Throws Error with the
  // reason why it is no record: bad JSON, no "type", a step without an iteration, a number that is
  // none.
  void parse(std::string_view line);

  // Of the line read last. `time` is NaN, and the iteration 0, where it has none.
  const std::string& type() const { return type_; }
  double time() const { return time_; }
  double iteration() const { return row_[kIteration]; }
  // A step: its row, kElapsed not set yet.
  std::array<double, kStepColumns>& row() { return row_; }
  bool has(std::string_view key) const;
  std::string_view line() const { return line_; }
  Json record() const;  // all of it

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
