#include "comm/launch/run_record.h"

#include <fmt/core.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

namespace megatron::comm::launch {
namespace {

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string words_of(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  const char* name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("signal {} (SIG{})", WTERMSIG(status), name == nullptr ? "?" : name);
}

bool is_saved(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == kSavedAndEnded; }

}  // namespace

void RunRecord::over(int rank, double now) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  r.over = true;
  r.order = ended_++;
  if (r.good()) return;
  const bool saved = !r.is_lost && is_saved(r.status);
  if (first_failure_at_ && (saved || !saved_)) return;
  first_failure_at_ = now;
  saved_ = saved;
}

void RunRecord::ended(int rank, int status, bool asked, double now) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  r.status = status;
  r.asked = asked;
  over(rank, now);
}

void RunRecord::lost(int rank, double now) {
  ranks_[static_cast<size_t>(rank)].is_lost = true;
  over(rank, now);
}

void RunRecord::launcher_ended(int status, double now) {
  launcher_status_ = status;
  if (!all_ended() && !first_failure_at_) first_failure_at_ = now;
}

Step RunRecord::due(double now) {
  if (!first_failure_at_ || all_ended() || killed_) return Step::none;
  if (!terminated_at_) {
    if (now < *first_failure_at_ + (saved_ ? kGraceToSave : kGrace)) return Step::none;
    terminated_at_ = now;
    return Step::terminate;
  }
  if (now < *terminated_at_ + kGraceAfterTerm) return Step::none;
  killed_ = true;
  return Step::kill;
}

void RunRecord::ask_to_end(double now) {
  if (!first_failure_at_) first_failure_at_ = now;
  if (!terminated_at_) terminated_at_ = now;
  killed_ = true;
}

const RunRecord::Rank* RunRecord::first() const {
  // Prefers ranks that ended by themselves, then the order in time.
  const auto place = [](const Rank& r) { return std::pair(r.asked || r.is_lost, r.order); };
  const Rank* best = nullptr;
  for (const Rank& r : ranks_) {
    if (r.over && !r.good() && (best == nullptr || place(r) < place(*best))) best = &r;
  }
  return best;
}

int RunRecord::code_of(const Rank& rank) const {
  // A rank that the launcher ended has no code of its own: MPI_Abort's code comes through the
  // launcher.
  const bool by_launcher = rank.is_lost || (rank.asked && WIFSIGNALED(rank.status));
  if (by_launcher && !terminated_at_ && launcher_status_ && WIFEXITED(*launcher_status_) &&
      *launcher_status_ != 0) {
    return WEXITSTATUS(*launcher_status_);
  }
  return rank.is_lost ? 128 + SIGKILL : exit_code_of(rank.status);
}

int RunRecord::exit_code() const {
  if (const Rank* rank = first()) return code_of(*rank);
  if (!all_ended()) {
    return launcher_status_ && *launcher_status_ != 0 ? exit_code_of(*launcher_status_) : 1;
  }
  return 0;  // every rank ended with 0, whatever the launcher's status is
}

std::string RunRecord::verdict() const {
  const Rank* rank = first();
  if (rank == nullptr) {
    if (all_ended()) return {};
    const std::string how = launcher_status_ ? words_of(*launcher_status_) : "no exit code";
    return fmt::format(
        "the launcher ended ({}) with {} of {} ranks started; see its output for the reason", how,
        started_, ranks_.size());
  }
  const bool all_saved = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) {
    return r.good() || (r.over && !r.is_lost && is_saved(r.status));
  });
  if (all_saved) {
    return fmt::format(
        "all ranks ended early after a signal (exit code {}); the same command resumes the run",
        kSavedAndEnded);
  }
  std::string what = "failed first, with " + words_of(rank->status);
  if (rank->asked) what = "was ended with " + words_of(rank->status);
  if (rank->is_lost) what = "was lost: its guard was killed";
  return fmt::format("rank {} {}", rank - ranks_.data(), what);
}

}  // namespace megatron::comm::launch
