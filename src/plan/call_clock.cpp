#include "plan/call_clock.h"

#include <algorithm>

#include "base/clock.h"

namespace megatron::plan {

namespace {

constexpr int kMaxTimes = 3;

}  // namespace

CallClock::CallClock(Runtime& runtime) : stream_(runtime.stream()) {
  if (runtime.device().kind == DeviceKind::cuda) timer_ = cuda_plugin().make_timer(stream_);
}

double CallClock::seconds(const std::function<void()>& work) {
  if (timer_) {
    double seconds = 0;
    for (int times = 0; times == 0 || (times < kMaxTimes && !timer_->exact()); ++times) {
      timer_->begin();
      work();
      seconds = timer_->end();
    }
    return seconds;
  }
  const double begin = now_seconds();
  work();
  stream_.synchronize();
  return now_seconds() - begin;
}

double CallClock::mean_seconds(double window, const std::function<void()>& call) {
  if (timer_) {
    const double one = seconds(call);
    const double fit = window / std::max(one, 1e-7);
    const int count = static_cast<int>(std::min<double>(fit, kMaxQueued));
    if (count <= 1) return one;
    return seconds([&] {
             for (int i = 0; i < count; ++i) call();
           }) /
           count;
  }
  int calls = 0;
  double elapsed = 0;
  const double begin = now_seconds();
  do {
    call();
    stream_.synchronize();
    ++calls;
    elapsed = now_seconds() - begin;
  } while (elapsed < window);
  return elapsed / calls;
}

}  // namespace megatron::plan
