// Measures the time of work that is queued on a stream.
#pragma once

#include <functional>
#include <memory>

#include "device/cuda_plugin.h"
#include "device/stream.h"

namespace megatron::plan {

class CallClock {
 public:
  explicit CallClock(Runtime& runtime);

  // Seconds that the device takes for what `work` queues on the runtime's stream: on a host by the
  // host's clock, on a GPU by its own, without the host's time for queueing. If queueing is slow,
  // as it may be the first time, `work` is called again.
  double seconds(const std::function<void()>& work);
  // Mean seconds of a call, over as many consecutive calls as take about `window` seconds, at least
  // one; on a GPU, whose queue is limited, at most kMaxQueued. window 0: one call.
  double mean_seconds(double window, const std::function<void()>& call);

  static constexpr int kMaxQueued = 64;

 private:
  Stream& stream_;
  std::unique_ptr<DeviceTimer> timer_;  // null except on a GPU
};

}  // namespace megatron::plan
