// The time of a kernel call that was seen once (kernels/observer.h), with cold caches.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/observer.h"
#include "plan/call_clock.h"

namespace megatron::bench {

// A call, kept.
struct SeenCall {
  std::string kernel;
  kernels::Cost cost;
  std::vector<kernels::Operand> operands;
  kernels::Call::Again again;
};

// Keeps what `wanted` says.
class CallKeeper final : public kernels::Observer {
 public:
  explicit CallKeeper(std::function<bool(const kernels::Call&)> wanted)
      : wanted_(std::move(wanted)) {}
  void after(const kernels::Call& call) override;
  std::vector<SeenCall> calls;

 private:
  std::function<bool(const kernels::Call&)> wanted_;
};

// Copies of a call's tensors, as many sets as it takes for 256 MB (at most 64) to be used between
// two uses of one: more than caches hold. Tensors that lie in one storage do so in each set.
class ColdCall {
 public:
  // From arena `scratch` of the runtime.
  ColdCall(const SeenCall& call, Runtime& runtime);
  // Seconds of a call (plan/call_clock.h): the best mean over windows of 30 ms, or of a third of
  // `seconds`; three windows or more.
  double best_seconds(double seconds);
  // The mean over about `window` seconds of calls in a row; the first call of all does not count.
  double mean_seconds(double window);
  // False where all the sets together fit into caches: the call moves less than 1 MB.
  bool cold() const { return sets_.size() < kMostSets || bytes_ >= kColdBytes / kMostSets / 4; }

 private:
  static constexpr int64_t kColdBytes = int64_t{256} << 20, kMostSets = 64;
  void add_set(const SeenCall& call);

  void run();

  Runtime& runtime_;
  plan::CallClock clock_;
  kernels::Call::Again again_;
  int64_t bytes_ = 0;  // of a set
  std::vector<std::vector<Tensor>> sets_;
  size_t turn_ = 0;
};

// Bytes a second that a call of a memory-bound kernel would move if memory cost nothing: the rate
// of one thread on so few of the call's rows that they stay in a core's cache, times `threads`.
// None where a call on fewer rows makes no sense (gathers, sums over fixed blocks).
std::optional<double> rate_in_cache(const SeenCall& call, Device device, int threads,
                                    double seconds);

// Seconds of `run`, which queues work on the runtime's stream, measured in the same way.
double best_seconds(Runtime& runtime, double seconds, const std::function<void(size_t turn)>& run);

}  // namespace megatron::bench
