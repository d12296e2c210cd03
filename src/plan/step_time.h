// Measures the time of a step on this machine: every distinct call of a step is made a few times,
// on operands of its shapes with meaningless contents, and the times are summed. Only the rates of
// the machine are kept between runs (plan/kept_rates.h).
#pragma once

#include <optional>
#include <vector>

#include "device/device.h"
#include "plan/expert_rows.h"
#include "plan/kept_rates.h"
#include "plan/measured_calls.h"
#include "plan/recorder.h"

namespace megatron::plan {

struct TimedRun {
  Device device;
  DType type = DType::f32;
  int ranks = 1;            // concurrent ranks in this process, as in a run
  int threads = 1;          // per rank
  double host_seconds = 0;  // per step, outside of kernels: ops, tape, memory
  int64_t touched = 0;      // bytes that a step uses, a bound on how cold caches are
  RateKeeping rates;        // for peak and bandwidth
  ExpertFill experts;       // fill of the experts' buffers
  // If not null, calls that it has are not made again, and newly measured calls are added to it.
  MeasuredCalls* measured = nullptr;
};

struct StepTime {
  double seconds = 0;           // per step
  std::vector<double> kernels;  // per call, by item of the StepWork
  std::vector<double> collectives;
  Rate peak, bandwidth;  // FLOP/s and bytes/s of all ranks together
};

// A call with an operand above kLargestOperand bytes (of all ranks together; sixteen times that on
// a GPU), or longer than kLongestCall by the machine's rates, is not made: its time is that of the
// largest measured call of its kernel and type, times the ratio of their costs, or without such a
// call the larger of FLOPs / peak and bytes / bandwidth. Takes about kBudget seconds, more only if
// making every call once takes longer, and then at most kMaxSeconds. nullopt: there are far more
// ranks here than cores. On a GPU the host's part of a step overlaps with the kernels, so the
// longer of both counts.
inline constexpr int64_t kLargestOperand = int64_t{150} << 20;
inline constexpr double kLongestCall = 0.5, kBudget = 2.0, kMaxSeconds = 4.0;
std::optional<StepTime> estimate_step_time(const StepWork& work, const TimedRun& run);

}  // namespace megatron::plan
