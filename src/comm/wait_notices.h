// Lines of the log about ranks that wait while the run goes on.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "comm/rank_record.h"
#include "comm/wait_limits.h"

namespace megatron::comm {

// A wait is logged once it is limits.notice seconds long, then at 2, 4, 8, 16 times that, and every
// 16 times it from there on. The next wait goes on in that row, so that a run that is slow all the
// time is not logged in each step; after a while without one it starts anew. Where another rank logs
// a wait, this one does not.
class WaitNotices {
 public:
  enum class Say { nothing, waits, is_over };

  WaitNotices() = default;
  explicit WaitNotices(WaitLimits limits) : limits_(limits) {}  // notice 0: nothing is logged

  // What to log now. longest: seconds that the oldest call has been open; 0: none is.
  Say look(double now, double longest);
  void logged_elsewhere(double now);

  // Logs who waits for whom (comm/hang_report.h): a warning, or for information where those do what
  // may take long; and that the wait that was logged last is over.
  void log_wait(std::span<const RankReport> reports);
  void log_end();

  const WaitLimits& limits() const { return limits_; }

 private:
  void count(double now);

  WaitLimits limits_{0, 0};
  double last_ = 0, gap_ = 0;
  double seconds_ = 0;  // of the wait that was logged last, so far
  int overdue_ = 0;     // looks in a row that found a call too long
  bool logged_ = false;
  std::optional<std::string> awaited_;  // of the line logged last
};

}  // namespace megatron::comm
