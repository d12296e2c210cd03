#include "comm/async.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/call_time.h"
#include "comm/wrapped_group.h"

namespace megatron::comm {

namespace {

// Number of polls before a thread sleeps. Each yields the core.
constexpr int kPollsOfQueue = 64;

// A call with copies of the name and the counts that it refers to.
struct KeptCall {
  explicit KeptCall(GroupCall given)
      : call(std::move(given)),
        name(call.name),
        send_counts(call.send_counts.begin(), call.send_counts.end()),
        receive_counts(call.receive_counts.begin(), call.receive_counts.end()) {
    call.name = name;
    call.send_counts = send_counts;
    call.receive_counts = receive_counts;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;

  GroupCall call;

 private:
  const std::string name;
  const std::vector<int64_t> send_counts, receive_counts;
};

class Ticket;

// State shared by the caller's thread, the thread of the calls and the events.
struct Shared {
  std::mutex mutex;
  std::condition_variable given, ended;
  std::deque<std::shared_ptr<Ticket>> waiting;
  // The caller's thread releases their tensors, so that arenas see requests in a fixed order.
  std::vector<std::shared_ptr<Ticket>> over;
  std::exception_ptr failure;
  bool closed = false;
  double waited = 0;  // seconds
};

class Ticket final : public Event::State {
 public:
  Ticket(std::shared_ptr<Shared> shared, GroupCall call)
      : kept_(std::move(call)), shared_(std::move(shared)) {}

  bool reached() override { return over_.load(std::memory_order_acquire); }

  void wait() override {
    double seconds = 0;
    std::vector<std::shared_ptr<Ticket>> over;
    std::exception_ptr failure;
    {
      const CallTime time(seconds);
      for (int look = 0; look < kPollsOfQueue && !reached(); ++look) std::this_thread::yield();
      std::unique_lock lock(shared_->mutex);
      shared_->ended.wait(lock, [this] { return reached(); });
      over.swap(shared_->over);
      failure = failure_;
    }
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->waited += seconds;
    }
    for (const std::shared_ptr<Ticket>& ticket : over) ticket->release();
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  // Called on the caller's thread after the call has ended. The Work keeps the tensors as long as
  // the caller keeps it.
  void release() { kept_.call.in = kept_.call.out = Tensor(); }

  // Called with the lock held.
  void end(std::exception_ptr failure) {
    failure_ = std::move(failure);
    over_.store(true, std::memory_order_release);
  }

  const GroupCall& call() const { return kept_.call; }

 private:
  KeptCall kept_;
  const std::shared_ptr<Shared> shared_;
  std::exception_ptr failure_;
  std::atomic<bool> over_ = false;
};

class AsyncGroup final : public WrappedGroup {
 public:
  using WrappedGroup::WrappedGroup;

  ~AsyncGroup() override {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closed = true;
    }
    // Other ranks may never reach the calls that still wait here.
    if (std::uncaught_exceptions() > exceptions_ && !last_->reached()) group_.give_up();
    shared_->given.notify_one();
    thread_.join();
    shared_->over.clear();  // completed operations, which own what owns them
  }

  Work make(GroupCall call, Stream& stream) override {
    call.overlaps = true;
    if (immediate() || !stream.device().has_data()) return group_.make(std::move(call), stream);
    return hand_over(std::move(call), stream);
  }

  void barrier(std::string_view call) override {
    wait_for_all();
    group_.barrier(call);
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    wait_for_all();
    return group_.split(color, key, members);
  }

  void set_name(std::string_view name) override {
    wait_for_all();
    group_.set_name(name);
  }

  // Time that the caller waited, without the time that overlapped with its compute.
  double seconds() const override {
    const std::lock_guard lock(shared_->mutex);
    return thread_.joinable() ? shared_->waited : group_.seconds();
  }

 private:
  Work hand_over(GroupCall call, Stream& stream) {
    stream.synchronize();
    if (!thread_.joinable()) start(stream);
    std::vector<Tensor> keep = call.tensors();
    last_ = std::make_shared<Ticket>(shared_, std::move(call));
    std::vector<std::shared_ptr<Ticket>> over;
    {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->failure != nullptr) {
        last_->end(shared_->failure);
      } else {
        shared_->waiting.push_back(last_);
      }
      over.swap(shared_->over);
    }
    shared_->given.notify_one();
    for (const std::shared_ptr<Ticket>& ticket : over) ticket->release();
    return {Event(last_), std::move(keep)};
  }

  void start(Stream& stream) {
    pool_.emplace(1);
    stream_.emplace(stream.device(), *pool_, stream.scratch(),
                    Stream::Target{stream.target().kind, 1});
    thread_ = std::thread([this] { run(); });
  }

  void wait_for_all() {
    if (last_ != nullptr) last_->wait();
  }

  void run() {
    std::unique_lock lock(shared_->mutex);
    for (;;) {
      shared_->given.wait(lock, [this] { return shared_->closed || !shared_->waiting.empty(); });
      if (shared_->waiting.empty()) return;
      const std::shared_ptr<Ticket> ticket = shared_->waiting.front();
      std::exception_ptr failure = shared_->failure;
      if (failure == nullptr) {
        lock.unlock();
        failure = failure_of(ticket->call());
        lock.lock();
        shared_->failure = failure;
      }
      shared_->over.push_back(std::move(shared_->waiting.front()));
      shared_->waiting.pop_front();
      ticket->end(std::move(failure));
      shared_->ended.notify_all();
    }
  }

  std::exception_ptr failure_of(const GroupCall& call) {
    try {
      group_.make(call, *stream_).wait(*stream_);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  const int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<Ticket> last_;
  std::optional<ThreadPool> pool_;
  std::optional<HostStream> stream_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Group> async(std::unique_ptr<Group> group) {
  if (group->queued()) return group;
  return std::make_unique<AsyncGroup>(std::move(group));
}

}  // namespace megatron::comm
