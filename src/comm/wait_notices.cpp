#include "comm/wait_notices.h"

#include <algorithm>

#include "base/log.h"
#include "comm/hang_report.h"

namespace megatron::comm {

namespace {

constexpr int kLooksInARow = 3;  // checks, so that a process that was suspended can catch up
constexpr double kMaxGap = 16;   // longest interval between notices, as a multiple of the first
constexpr double kForgotten =
    4;  // intervals without a notice after which the first interval applies again

}  // namespace

WaitNotices::Say WaitNotices::look(double now, double longest) {
  if (limits_.notice <= 0) return Say::nothing;
  if (longest < limits_.notice) {
    overdue_ = 0;
    if (logged_) {
      logged_ = false;
      return Say::is_over;
    }
    if (gap_ > 0 && now > last_ + kForgotten * gap_) gap_ = 0;
    return Say::nothing;
  }
  if (logged_) seconds_ = std::max(seconds_, longest);
  overdue_ = std::min(overdue_ + 1, kLooksInARow);
  if (overdue_ < kLooksInARow || (gap_ > 0 && now < last_ + gap_)) return Say::nothing;
  count(now);
  logged_ = true;
  seconds_ = longest;
  return Say::waits;
}

void WaitNotices::logged_elsewhere(double now) {
  count(now);
  logged_ = false;
}

void WaitNotices::count(double now) {
  gap_ = gap_ == 0 ? limits_.notice : std::min(2 * gap_, kMaxGap * limits_.notice);
  last_ = now;
}

void WaitNotices::log_wait(std::span<const RankReport> reports) {
  const WaitNotice notice = wait_notice(reports, limits_);
  if (notice.text.empty()) return;  // the wait is over by now
  if (!awaited_ || !notice.awaited.empty()) awaited_ = notice.awaited;
  log::write(notice.usual ? log::Level::info : log::Level::warning, notice.text);
}

void WaitNotices::log_end() {
  if (!awaited_) return;
  log::info("the wait{}{} ended after {:.1f} s", awaited_->empty() ? "" : " for ", *awaited_,
            seconds_);
  awaited_.reset();
}

}  // namespace megatron::comm
