#include "comm/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/hang_report.h"

namespace megatron::comm {

namespace {

constexpr double kAfterHang = 5, kAfterFailure = 30;  // seconds
constexpr double kMinPause = 0.01, kMaxPause = 0.25;  // seconds between two checks
constexpr int kOverdueChecks = 3;  // checks, so that a process that was suspended can catch up

}  // namespace

Watchdog::Watchdog(World& world, WaitLimits limits)
    : world_(world), limits_(limits), notices_(limits) {
  if (limits.most > 0 || limits.notice > 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void Watchdog::watch() {
  const double shortest = limits_.most > 0 && limits_.notice > 0
                              ? std::min(limits_.most, limits_.notice)
                              : std::max(limits_.most, limits_.notice);
  const std::chrono::duration<double> pause(std::clamp(shortest / 20, kMinPause, kMaxPause));
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, pause, [this] { return stopped_; })) look();
}

void Watchdog::look() {
  if (failed_at_ > 0) {
    if (now_seconds() > failed_at_ + grace_) end_process();
    return;
  }
  if (world_.failed()) {
    if (limits_.most <= 0) return;
    failed_at_ = now_seconds();
    grace_ = std::clamp(limits_.most, kAfterHang, kAfterFailure);
    return;
  }
  look_for_waits();
  overdue_ = limits_.most > 0 && world_.longest() > limits_.most ? overdue_ + 1 : 0;
  if (overdue_ < kOverdueChecks) return;
  const std::string text = hang_text(world_.reports(), limits_.most);
  failed_at_ = now_seconds();
  grace_ = kAfterHang;
  world_.fail(-1, std::make_exception_ptr(Error(text)), text);
}

void Watchdog::look_for_waits() {
  const WaitNotices::Say say = notices_.look(now_seconds(), world_.longest());
  if (say == WaitNotices::Say::is_over) notices_.log_end();
  if (say == WaitNotices::Say::waits) notices_.log_wait(world_.reports());
}

void Watchdog::end_process() {
  const std::vector<RankReport> reports = world_.reports();
  std::string text = world_.reason();
  text += fmt::format("\nRanks still running {:g} s later; the process ends:", grace_);
  for (const RankReport& report : reports) {
    if (world_.runs(report.rank)) text += "\n  " + line_of(report, reports);
  }
  log::error("{}", text);
  std::fflush(nullptr);
  std::_Exit(kGivenUp);
}

}  // namespace megatron::comm
