#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "comm/traffic.h"
#include "comm/wrapped_group.h"

namespace megatron::comm {
namespace {

// Calls the listener on the thread that made it: calls of other threads (comm/async.h) are queued
// until that thread's next call.
class Notifier {
 public:
  explicit Notifier(TrafficListener& listener) : listener_(listener) {}

  void tell(const Traffic& traffic) {
    tell_kept();
    if (is_listeners_thread()) return listener_.communicated(traffic);
    const std::lock_guard lock(mutex_);
    kept_.push_back({traffic, std::string(traffic.call)});
    some_.store(true, std::memory_order_release);
  }

  void tell_kept() {
    if (!is_listeners_thread() || !some_.load(std::memory_order_acquire)) return;
    std::vector<Kept> kept;
    {
      const std::lock_guard lock(mutex_);
      kept.swap(kept_);
      some_.store(false, std::memory_order_release);
    }
    for (Kept& k : kept) {
      k.traffic.call = k.call;
      listener_.communicated(k.traffic);
    }
  }

 private:
  struct Kept {
    Traffic traffic;
    std::string call;
  };
  bool is_listeners_thread() const { return std::this_thread::get_id() == thread_; }

  TrafficListener& listener_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::vector<Kept> kept_;
  std::atomic<bool> some_ = false;
};

// A failed call is not reported, since it may have moved nothing. split() is not reported either,
// since it moves no tensor.
class Observed final : public WrappedGroup {
 public:
  Observed(Group& group, std::shared_ptr<Notifier> notifier)
      : WrappedGroup(group), notifier_(std::move(notifier)) {}
  Observed(std::unique_ptr<Group> group, std::shared_ptr<Notifier> notifier)
      : WrappedGroup(std::move(group)), notifier_(std::move(notifier)) {}
  ~Observed() override {
    if (std::uncaught_exceptions() == 0) notifier_->tell_kept();
  }

  Work make(GroupCall c, Stream& stream) override {
    Traffic traffic{.collective = name(c.operation),
                    .call = c.name,
                    .bytes = std::max(c.in.bytes(), c.out.defined() ? c.out.bytes() : 0),
                    .overlaps = c.overlaps};
    if (c.operation == Operation::all_to_all && c.in.bytes() > 0) {
      const int64_t row = c.in.bytes() / c.in.size(0);
      traffic.to_others = c.in.bytes() - row * c.send_counts[static_cast<size_t>(rank())];
    }
    return reported(traffic, [&] { return group_.make(std::move(c), stream); });
  }

  void barrier(std::string_view call) override {
    reported({.collective = "barrier", .call = call}, [&] {
      group_.barrier(call);
      return Work();
    });
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const OwnSeconds seconds(*this);
    return std::make_unique<Observed>(group_.split(color, key, members), notifier_);
  }

  double seconds() const override { return seconds_; }
  bool queued() const override { return group_.queued(); }
  void queued_again(Stream& stream, std::string_view call) override {
    group_.queued_again(stream, call);
  }

 private:
  // Adds the wrapped group's seconds of a call to this group's, also if the call throws.
  class OwnSeconds {
   public:
    explicit OwnSeconds(Observed& observed)
        : observed_(observed), before_(observed.group_.seconds()) {}
    ~OwnSeconds() { observed_.seconds_ += observed_.group_.seconds() - before_; }
    OwnSeconds(const OwnSeconds&) = delete;
    OwnSeconds& operator=(const OwnSeconds&) = delete;

   private:
    Observed& observed_;
    double before_;
  };

  template <class F>
  Work reported(Traffic traffic, F&& run) {
    traffic.ranks = size();
    traffic.began = now_seconds();
    Work work = [&] {
      const OwnSeconds seconds(*this);
      return run();
    }();
    traffic.ended = now_seconds();
    notifier_->tell(traffic);
    return work;
  }

  std::shared_ptr<Notifier> notifier_;
};

}  // namespace

std::unique_ptr<Group> observed(Group& group, TrafficListener& listener) {
  return std::make_unique<Observed>(group, std::make_shared<Notifier>(listener));
}

}  // namespace megatron::comm
