// Measures the time of a recorded kernel call (kernels/observer.h) with cold caches.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/observer.h"
#include "plan/call_clock.h"

namespace megatron::bench {

// A recorded kernel call.
struct SeenCall {
  std::string kernel;
  kernels::Cost cost;
  std::vector<kernels::Operand> operands;
  kernels::Call::Again again;
};

// Records the calls selected by `wanted`.
class CallKeeper final : public kernels::Observer {
 public:
  explicit CallKeeper(std::function<bool(const kernels::Call&)> wanted)
      : wanted_(std::move(wanted)) {}
  void after(const kernels::Call& call) override;
  std::vector<SeenCall> calls;

 private:
  std::function<bool(const kernels::Call&)> wanted_;
};

// Copies of a call's tensors: enough sets (at most 64) that 256 MB are used between two uses of one
// set, more than caches hold. Tensors that share a storage also do so in each set.
class ColdCall {
 public:
  // Allocates from arena `scratch` of the runtime.
  ColdCall(const SeenCall& call, Runtime& runtime);
  // Seconds per call (plan/call_clock.h): the best mean over at least three windows of 30 ms, or of
  // a third of `seconds`.
  double best_seconds(double seconds);
  // Mean over about `window` seconds of consecutive calls; the very first call is not counted.
  double mean_seconds(double window);
  // False if all sets together fit into caches, because the call moves less than 1 MB.
  bool cold() const { return sets_.size() < kMaxSets || bytes_ >= kColdBytes / kMaxSets / 4; }

 private:
  static constexpr int64_t kColdBytes = int64_t{256} << 20, kMaxSets = 64;
  void add_set(const SeenCall& call);

  void run();

  Runtime& runtime_;
  plan::CallClock clock_;
  kernels::Call::Again again_;
  int64_t bytes_ = 0;  // bytes of one set
  std::vector<std::vector<Tensor>> sets_;
  size_t turn_ = 0;
};

// Bytes per second that a call of a memory-bound kernel would move if memory were free: the rate of
// one thread on so few of the call's rows that they stay in a core's cache, times `threads`.
// nullopt if a call on fewer rows is not meaningful (gathers, sums over fixed blocks).
std::optional<double> rate_in_cache(const SeenCall& call, Device device, int threads,
                                    double seconds);

// Seconds of `run`, which queues work on the runtime's stream, measured the same way.
double best_seconds(Runtime& runtime, double seconds, const std::function<void(size_t turn)>& run);

}  // namespace megatron::bench
