// Signals that are asked for where it suits, instead of ending the process.
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

// While one lives, the signals named are held back in this thread and every thread started after
// it: the first is there for caught(). One that comes at least `apart` later does what it would
// have done without the watch, however long the program takes to its next caught(). Those in
// between are the first again, as launchers and terminals send a signal to a process and to its
// group. One object a process at a time, made before other threads.
class SignalWatch {
 public:
  static constexpr std::chrono::milliseconds kApart{1000};

  // on_first: called with the first signal within a moment, by a thread of the watch. Throws Error
  // when the system refuses.
  explicit SignalWatch(std::span<const int> signals, std::function<void(int)> on_first = {},
                       std::chrono::milliseconds apart = kApart);
  // Signals do again what they did before; those that came and were not taken are dropped: what is
  // over by then need not be ended.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // The first signal that has come. May be called from any thread.
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
