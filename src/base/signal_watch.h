// Signals that are asked for where it suits, instead of ending the process.
#pragma once

#include <csignal>
#include <optional>
#include <span>
#include <string>

namespace megatron {

// While one lives, the signals named wait until caught() takes them; in every thread started after it.
// One object a process at a time, made before other threads.
class SignalWatch {
 public:
  explicit SignalWatch(std::span<const int> signals);  // throws Error when the system refuses
  ~SignalWatch();                                      // signals do again what they did before
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // A signal that has come; from then on the next one acts at once. Of one thread only.
  std::optional<int> caught();

 private:
  sigset_t watched_, before_;
  std::optional<int> caught_;
};

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace megatron
