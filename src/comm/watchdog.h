// Watches ranks that are threads. Ends a run that makes no progress and reports the reason.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/shared_group.h"
#include "comm/wait_limits.h"
#include "comm/wait_notices.h"

namespace megatron::comm {

// Active from construction to destruction. A call that takes longer than limits.notice is logged
// with the ranks it waits for, again at growing intervals (comm/wait_notices.h), and so is its end.
// One that takes longer than limits.most fails the world with one report of all ranks, which each
// rank's call throws. Ranks that have not ended 5 s after such a report, or 30 s after another
// failure (or limits.most, if between the two), cannot be woken, since they are in no call and
// reach none: the process prints what failed and what they do, and exits with kGivenUp. limits.most
// 0: no call fails the world.
class Watchdog {
 public:
  Watchdog(World& world, WaitLimits limits);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();
  void look();
  void look_for_waits();
  [[noreturn]] void end_process();

  World& world_;
  const WaitLimits limits_;
  WaitNotices notices_;
  int overdue_ = 0;  // consecutive checks that found a call overdue
  double failed_at_ = 0, grace_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace megatron::comm
