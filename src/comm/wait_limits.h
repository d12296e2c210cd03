// Limits on how long ranks wait for one that does not come.
#pragma once

#include "comm/group.h"

namespace megatron::comm {

inline constexpr double kNoticeSeconds = 30;

// Seconds of a call between ranks, waiting included.
struct WaitLimits {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers limit the time alone
  WaitLimits(double most = kMaxSeconds, double notice = kNoticeSeconds)
      : most(most), notice(notice) {}

  double most;    // seconds after which the run ends with a report; 0: unlimited
  double notice;  // seconds after which waiting ranks are logged and the run continues; 0: never
};

}  // namespace megatron::comm
