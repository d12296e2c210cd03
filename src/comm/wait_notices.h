// Log lines about ranks that wait while the run continues.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "comm/rank_record.h"
#include "comm/wait_limits.h"

namespace megatron::comm {

// A wait is logged once it is limits.notice seconds long, then at 2, 4, 8, 16 times that, and every
// 16 times after that. The next wait continues this sequence, so that a run that is constantly slow
// is not logged in each step; after a while without a wait it starts over. If another rank logs a
// wait, this one does not.
class WaitNotices {
 public:
  enum class Say { nothing, waits, is_over };

  WaitNotices() = default;
  explicit WaitNotices(WaitLimits limits) : limits_(limits) {}  // notice 0 disables logging

  // Decides what to log now. longest: seconds that the oldest call has been open; 0: no open call.
  Say look(double now, double longest);
  void logged_elsewhere(double now);

  // Logs who waits for whom (comm/hang_report.h): as a warning, or as information if the awaited
  // ranks do something that may take long; and that the last logged wait is over.
  void log_wait(std::span<const RankReport> reports);
  void log_end();

  const WaitLimits& limits() const { return limits_; }

 private:
  void count(double now);

  WaitLimits limits_{0, 0};
  double last_ = 0, gap_ = 0;
  double seconds_ = 0;  // length so far of the wait that was logged last
  int overdue_ = 0;     // consecutive checks that found a call overdue
  bool logged_ = false;
  std::optional<std::string> awaited_;  // awaited ranks in the last logged line
};

}  // namespace megatron::comm
