// Times of the parts of a step on every rank (--timing-log-level), under Megatron-LM's names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "comm/group.h"
#include "device/stream.h"
#include "report/log/record.h"
#include "report/log/step_times.h"

namespace megatron::report {

// Accumulates a rank's times between log lines.
class Timers {
 public:
  explicit Timers(int64_t level) : level_(level) {}

  void add(const StepTimes& times, double data_wait);
  // Returns the means of the accumulated times on all ranks and resets them. Collective; every rank
  // gets all of them. At least one step must have been added.
  std::vector<TimerFigure> take(comm::Group& world, Stream& stream);

 private:
  int64_t level_, steps_ = 0;
  StepTimes sum_;
  double data_wait_ = 0;
};

// option: "max", "minmax" or "all", as --timing-log-option.
//
//   (min, max) time across ranks (ms):
//       forward-backward ..............................: (7.24, 7.30)
std::string timer_text(const std::vector<TimerFigure>& figures, std::string_view option);

// {"forward-backward": {"least": seconds, "most": seconds}, ...}; for "max" without the least, for
// "all" with "ranks", a list.
Json timers_to_json(const std::vector<TimerFigure>& figures, std::string_view option);

}  // namespace megatron::report
