#include "base/signal_watch.h"

#include <string.h>

#include <ctime>
#include <system_error>

#include "base/error.h"

namespace megatron {

SignalWatch::SignalWatch(std::span<const int> signals) {
  sigemptyset(&watched_);
  for (const int signal : signals) sigaddset(&watched_, signal);
  const int error = pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  MG_CHECK(error == 0, "cannot block signals: {}", std::generic_category().message(error));
}

SignalWatch::~SignalWatch() {
  while (waiting() > 0) continue;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::waiting() const {
  const timespec now{};
  siginfo_t info;
  return sigtimedwait(&watched_, &info, &now);
}

std::optional<int> SignalWatch::caught() {
  if (caught_ == 0) {
    const int signal = waiting();
    if (signal <= 0) return std::nullopt;  // none, or interrupted by one that is not watched
    caught_ = signal;
    pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
  }
  return caught_;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

}  // namespace megatron
