#include "base/signal_watch.h"

#include <string.h>

#include <ctime>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace megatron {
namespace {

constexpr std::chrono::milliseconds kLook{50};

}  // namespace

SignalWatch::SignalWatch(std::span<const int> signals, std::function<void(int)> on_first,
                         std::chrono::milliseconds apart)
    : on_first_(std::move(on_first)), apart_(apart) {
  sigemptyset(&watched_);
  for (const int signal : signals) sigaddset(&watched_, signal);
  const int error = pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  MG_CHECK(error == 0, "cannot block signals: {}", std::generic_category().message(error));
  thread_ = std::thread([this] { run(); });
}

SignalWatch::~SignalWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ends_.notify_one();
  thread_.join();
  drop();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::take() const {
  const timespec now{};
  siginfo_t info;
  return sigtimedwait(&watched_, &info, &now);
}

void SignalWatch::drop() const {
  while (take() > 0) continue;
}

// The signal stays pending, because other code also checks it to see that the process is to end
// (comm/mpi/watch.h).
std::optional<int> SignalWatch::caught() {
  sigset_t pending;
  if (caught_ == 0 && sigpending(&pending) == 0) {
    for (int signal = 1; signal < NSIG; ++signal) {
      int none = 0;
      if (sigismember(&pending, signal) == 1 && sigismember(&watched_, signal) == 1)
        caught_.compare_exchange_strong(none, signal);
    }
  }
  const int signal = caught_;
  return signal == 0 ? std::nullopt : std::optional(signal);
}

void SignalWatch::run() {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> first;
  bool dropped = false;
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kLook, [this] { return over_; })) {
    if (!first) {
      const std::optional<int> signal = caught();
      if (!signal) continue;
      first = Clock::now();
      if (on_first_) on_first_(*signal);
    } else if (!dropped) {
      dropped = Clock::now() >= *first + apart_;
      if (dropped) drop();
    } else if (const int second = take(); second > 0) {
      sigset_t one;
      sigemptyset(&one);
      sigaddset(&one, second);
      pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
      raise(second);
    }
  }
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

}  // namespace megatron
