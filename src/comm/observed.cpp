#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "comm/traffic.h"

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
class Observed final : public Group {
 public:
  Observed(Group& group, std::shared_ptr<Notifier> notifier)
      : group_(group), notifier_(std::move(notifier)) {}
  Observed(std::unique_ptr<Group> group, std::shared_ptr<Notifier> notifier)
      : owned_(std::move(group)), group_(*owned_), notifier_(std::move(notifier)) {}
  ~Observed() override {
    if (std::uncaught_exceptions() == 0) notifier_->tell_kept();
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    return reported("all_reduce", call, t.bytes(),
                    [&] { return group_.all_reduce(std::move(t), op, stream, call); });
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    return reported("all_gather", call, std::max(in.bytes(), out.bytes()),
                    [&] { return group_.all_gather(std::move(in), std::move(out), stream, call); });
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    return reported("reduce_scatter", call, std::max(in.bytes(), out.bytes()), [&] {
      return group_.reduce_scatter(std::move(in), std::move(out), op, stream, call);
    });
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    return reported("all_to_all", call, std::max(in.bytes(), out.bytes()), [&] {
      return group_.all_to_all(std::move(in), std::move(out), send_counts, receive_counts, stream,
                               call);
    });
  }

  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    return reported("broadcast", call, t.bytes(),
                    [&] { return group_.broadcast(std::move(t), root, stream, call); });
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    return reported("send", call, t.bytes(),
                    [&] { return group_.send(std::move(t), to, stream, call); });
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    return reported("recv", call, t.bytes(),
                    [&] { return group_.recv(std::move(t), from, stream, call); });
  }

  void barrier(std::string_view call) override {
    reported("barrier", call, 0, [&] {
      group_.barrier(call);
      return Work();
    });
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    const OwnSeconds seconds(*this);
    return std::make_unique<Observed>(group_.split(color, key, members), notifier_);
  }

  void set_name(std::string_view name) override { group_.set_name(name); }
  bool immediate() const override { return group_.immediate(); }
  void give_up() override { group_.give_up(); }
  Doing* doing() override { return group_.doing(); }
  bool queued() const override { return group_.queued(); }
  void queued_again(Stream& stream, std::string_view call) override {
    group_.queued_again(stream, call);
  }
  Member* member() override { return group_.member(); }

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
  Work reported(std::string_view collective, std::string_view call, int64_t bytes, F&& run) {
    Traffic traffic{.collective = collective, .call = call, .ranks = size(), .bytes = bytes};
    traffic.began = now_seconds();
    Work work = [&] {
      const OwnSeconds seconds(*this);
      return run();
    }();
    traffic.ended = now_seconds();
    notifier_->tell(traffic);
    return work;
  }

  std::unique_ptr<Group> owned_;
  Group& group_;
  std::shared_ptr<Notifier> notifier_;
};

}  // namespace

std::unique_ptr<Group> observed(Group& group, TrafficListener& listener) {
  return std::make_unique<Observed>(group, std::make_shared<Notifier>(listener));
}

}  // namespace megatron::comm
