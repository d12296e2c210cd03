#include "comm/async.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/function_ref.h"
#include "comm/call_time.h"

namespace megatron::comm {

namespace {

// Number of polls before a thread sleeps. Each yields the core.
constexpr int kLooks = 64;

enum class Kind { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv };

struct Call {
  Kind kind = Kind::all_reduce;
  Tensor in, out;
  Reduce op = Reduce::sum;
  int peer = -1;  // root, to or from
  std::vector<int64_t> send_counts, receive_counts;
  std::string name;
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
  Ticket(std::shared_ptr<Shared> shared, Call call)
      : call(std::move(call)), shared_(std::move(shared)) {}

  bool reached() override { return over_.load(std::memory_order_acquire); }

  void wait() override {
    double seconds = 0;
    std::vector<std::shared_ptr<Ticket>> over;
    std::exception_ptr failure;
    {
      const CallTime time(seconds);
      for (int look = 0; look < kLooks && !reached(); ++look) std::this_thread::yield();
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
  void release() { call.in = call.out = Tensor(); }

  // Called with the lock held.
  void end(std::exception_ptr failure) {
    failure_ = std::move(failure);
    over_.store(true, std::memory_order_release);
  }

  Call call;

 private:
  const std::shared_ptr<Shared> shared_;
  std::exception_ptr failure_;
  std::atomic<bool> over_ = false;
};

class AsyncGroup final : public Group {
 public:
  explicit AsyncGroup(std::unique_ptr<Group> group) : group_(std::move(group)) {}

  ~AsyncGroup() override {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closed = true;
    }
    // Other ranks may never reach the calls that still wait here.
    if (std::uncaught_exceptions() > exceptions_ && !last_->reached()) group_->give_up();
    shared_->given.notify_one();
    thread_.join();
    shared_->over.clear();  // completed operations, which own what owns them
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  Work all_reduce(Tensor t, Reduce op, Stream& stream, std::string_view call) override {
    if (at_once(stream)) return group_->all_reduce(std::move(t), op, stream, call);
    return hand_over({.kind = Kind::all_reduce, .in = std::move(t), .op = op}, stream, call);
  }

  Work all_gather(Tensor in, Tensor out, Stream& stream, std::string_view call) override {
    if (at_once(stream)) return group_->all_gather(std::move(in), std::move(out), stream, call);
    return hand_over({.kind = Kind::all_gather, .in = std::move(in), .out = std::move(out)}, stream,
                     call);
  }

  Work reduce_scatter(Tensor in, Tensor out, Reduce op, Stream& stream,
                      std::string_view call) override {
    if (at_once(stream))
      return group_->reduce_scatter(std::move(in), std::move(out), op, stream, call);
    return hand_over(
        {.kind = Kind::reduce_scatter, .in = std::move(in), .out = std::move(out), .op = op},
        stream, call);
  }

  Work all_to_all(Tensor in, Tensor out, std::span<const int64_t> send_counts,
                  std::span<const int64_t> receive_counts, Stream& stream,
                  std::string_view call) override {
    if (at_once(stream))
      return group_->all_to_all(std::move(in), std::move(out), send_counts, receive_counts, stream,
                                call);
    return hand_over({.kind = Kind::all_to_all,
                      .in = std::move(in),
                      .out = std::move(out),
                      .send_counts = {send_counts.begin(), send_counts.end()},
                      .receive_counts = {receive_counts.begin(), receive_counts.end()}},
                     stream, call);
  }

  Work broadcast(Tensor t, int root, Stream& stream, std::string_view call) override {
    if (at_once(stream)) return group_->broadcast(std::move(t), root, stream, call);
    return hand_over({.kind = Kind::broadcast, .in = std::move(t), .peer = root}, stream, call);
  }

  Work send(Tensor t, int to, Stream& stream, std::string_view call) override {
    if (at_once(stream)) return group_->send(std::move(t), to, stream, call);
    return hand_over({.kind = Kind::send, .in = std::move(t), .peer = to}, stream, call);
  }

  Work recv(Tensor t, int from, Stream& stream, std::string_view call) override {
    if (at_once(stream)) return group_->recv(std::move(t), from, stream, call);
    return hand_over({.kind = Kind::recv, .in = std::move(t), .peer = from}, stream, call);
  }

  void barrier(std::string_view call) override {
    wait_for_all();
    group_->barrier(call);
  }

  std::unique_ptr<Group> split(int color, int key, int members) override {
    wait_for_all();
    return group_->split(color, key, members);
  }

  void set_name(std::string_view name) override {
    wait_for_all();
    group_->set_name(name);
  }

  // Time that the caller waited, without the time that overlapped with its compute.
  double seconds() const override {
    const std::lock_guard lock(shared_->mutex);
    return thread_.joinable() ? shared_->waited : group_->seconds();
  }

  bool immediate() const override { return group_->immediate(); }
  void give_up() override { group_->give_up(); }
  Doing* doing() override { return group_->doing(); }
  Member* member() override { return group_->member(); }

 private:
  bool at_once(Stream& stream) const { return group_->immediate() || !stream.device().has_data(); }

  Work hand_over(Call call, Stream& stream, std::string_view name) {
    stream.synchronize();
    if (!thread_.joinable()) start(stream);
    call.name = name;
    std::vector<Tensor> keep = {call.in};
    if (call.out.defined()) keep.push_back(call.out);
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
        failure = failure_of(ticket->call);
        lock.lock();
        shared_->failure = failure;
      }
      shared_->over.push_back(std::move(shared_->waiting.front()));
      shared_->waiting.pop_front();
      ticket->end(std::move(failure));
      shared_->ended.notify_all();
    }
  }

  std::exception_ptr failure_of(const Call& call) {
    try {
      make(call).wait(*stream_);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  Work make(const Call& c) {
    Stream& stream = *stream_;
    switch (c.kind) {
      case Kind::all_reduce: return group_->all_reduce(c.in, c.op, stream, c.name);
      case Kind::all_gather: return group_->all_gather(c.in, c.out, stream, c.name);
      case Kind::reduce_scatter: return group_->reduce_scatter(c.in, c.out, c.op, stream, c.name);
      case Kind::all_to_all:
        return group_->all_to_all(c.in, c.out, c.send_counts, c.receive_counts, stream, c.name);
      case Kind::broadcast: return group_->broadcast(c.in, c.peer, stream, c.name);
      case Kind::send: return group_->send(c.in, c.peer, stream, c.name);
      case Kind::recv: return group_->recv(c.in, c.peer, stream, c.name);
    }
    MG_ASSERT(false);
    return {};
  }

  const std::unique_ptr<Group> group_;
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
