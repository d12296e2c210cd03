// Threads for connections: one for each open connection, up to a limit. A connection beyond the
// limit is given to the thread that accepts connections.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron::server {

class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t most) : most_(most) {}

  // The result type is httplib's, which differs between its versions.
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));
  Enqueued enqueue(std::function<void()> serve) override {
    if (take(serve)) {
      wake_.notify_one();
    } else {
      serve();
    }
    return static_cast<Enqueued>(true);
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  bool take(std::function<void()>& serve) {
    const std::lock_guard lock(mutex_);
    if (open_ == most_) return false;
    ++open_;
    waiting_.push_back(std::move(serve));
    if (idle_ < waiting_.size()) threads_.emplace_back([this] { work(); });
    return true;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      wake_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      --idle_;
      if (waiting_.empty()) return;
      const std::function<void()> serve = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      serve();
      lock.lock();
      --open_;
    }
  }

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;  // threads without a connection
  size_t open_ = 0;  // connections that have a thread or wait for one
  bool ends_ = false;
};

}  // namespace megatron::server
