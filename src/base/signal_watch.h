// Signals that are polled at a convenient time, instead of ending the process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace megatron {

// While an object exists, the named signals are blocked in this thread and every thread started
// after it, and the first one is available to caught(). A signal that arrives at least `apart`
// later has its original effect, however long the program takes until its next caught(). Signals in
// between count as the first one, because launchers and terminals send a signal both to a process
// and to its group. One object per process at a time, made before other threads.
class SignalWatch {
 public:
  static constexpr std::chrono::milliseconds kApart{1000};

  // on_first: called shortly after the first signal, by a thread of the watch. Throws Error if the
  // system refuses.
  explicit SignalWatch(std::span<const int> signals, std::function<void(int)> on_first = {},
                       std::chrono::milliseconds apart = kApart);
  // Restores the signals' previous effect. Signals that arrived and were not taken are dropped,
  // since the work that they were to end is over.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // First signal that has arrived. Thread-safe.
  std::optional<int> caught();

 private:
  void run();
  int take() const;  // takes a pending signal; 0 or less if there is none
  void drop() const;

  sigset_t watched_, before_;
  const std::function<void(int)> on_first_;
  const std::chrono::milliseconds apart_;
  std::atomic<int> caught_ = 0;  // 0: none
  std::mutex mutex_;
  std::condition_variable ends_;
  bool over_ = false;
  std::thread thread_;
};

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace megatron
