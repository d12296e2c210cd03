// Signals that are asked for where it suits, instead of ending the process.
#pragma once

#include <atomic>
#include <csignal>
#include <optional>
#include <span>
#include <string>

namespace megatron {

// While one lives, the signals named wait until caught() takes them; in every thread started after
// it. One object a process at a time, made before other threads.
class SignalWatch {
 public:
  explicit SignalWatch(std::span<const int> signals);  // throws Error when the system refuses
  // Signals do again what they did before; those that came and were not taken are dropped: what is
  // over by then need not be ended.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // A signal that has come; from then on the next one acts at once. Of any thread.
  std::optional<int> caught();

 private:
  int waiting() const;  // takes a signal; 0 or less: none

  sigset_t watched_, before_;
  std::atomic<int> caught_ = 0;  // 0: none
};

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace megatron
