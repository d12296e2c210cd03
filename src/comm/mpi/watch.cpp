#include "comm/mpi/watch.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/hang_report.h"
#include "comm/launch/child.h"

namespace megatron::comm {

namespace {

constexpr int kPause = 50;          // milliseconds between two checks
constexpr int kLooks = 3;           // checks, so that a process that was suspended can catch up
constexpr double kAnswers = 2;      // seconds for others to answer
constexpr double kTurn = 0.1;       // seconds between ranks that ask whom all wait for
constexpr double kHold = 8;         // seconds for a lower rank that asks to report and end the run
constexpr double kLateAtEnd = 0.3;  // seconds from the end of the body until others are told
constexpr double kStuck = 0.3;      // seconds after which a call may be stuck for good
constexpr std::chrono::milliseconds kLastWords{150};
constexpr double kIgnored = 0.7;  // the same when a signal is not handled

bool is_pending(int signal) {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && sigismember(&pending, signal) == 1;
}

}  // namespace

TermSignal::TermSignal() {
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask_before_);
  if (sigismember(&mask_before_, SIGTERM) == 0) file_ = launch::signal_file({SIGTERM});
}

TermSignal::~TermSignal() { ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr); }

Watch::Watch(std::shared_ptr<Session> session, const TermSignal& signal)
    : session_(std::move(session)),
      record_(session_->record()),
      signal_(signal),
      stop_(launch::make_pipe()) {
  session_->call("duplicate", [this] { return MPI_Comm_dup(session_->world(), &communicator_); });
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  stop_.write.close();  // the other end notices
  if (thread_.joinable()) thread_.join();
}

void Watch::close() {
  be_quiet();
  stop_.write.close();
  if (thread_.joinable()) thread_.join();
  for (const auto& letter : letters_) {
    // The process that it was for has ended, too. Its bytes are kept until MPI has ended.
    if (session_->test({&letter->request, 1})) continue;
    session_->call("free", [&] { return MPI_Request_free(&letter->request); });
  }
  session_->call("free", [this] { return MPI_Comm_free(&communicator_); });
}

void Watch::body_begins(WaitLimits limits) {
  ++runs_;
  ended_at_ = 0;
  notice_ = limits.notice;
  limit_ = limits.most;
}

void Watch::body_ended() { ended_at_ = now_seconds(); }
void Watch::be_quiet() { quiet_ = true; }

void Watch::run() {
  pollfd files[] = {{stop_.read.get(), POLLIN, 0}, {signal_.file().get(), POLLIN, 0}};
  for (;;) {
    ::poll(files, 2, kPause);
    if (files[0].revents != 0) return;
    if (files[1].revents != 0) on_signal();
    try {
      look();
    } catch (const Error& error) {
      if (session_->given_up()) continue;
      log::error("rank {} no longer watches for hangs: {}", session_->rank(), error.what());
      return;
    }
  }
}

void Watch::look() {
  look_for_signal();
  if (session_->given_up()) return;
  look_for_hang();
  // A thread inside a long MPI call holds the lock that this one needs.
  if (!session_->is_free()) return;
  look_for_waits();
  read_letters();
  log_wait_when_asked();
  look_for_ended();
  announce_end();
}

void Watch::look_for_hang() {
  const double limit = limit_, now = now_seconds();
  overdue_ = limit > 0 && record_.longest() > limit ? overdue_ + 1 : 0;
  if (overdue_ < kLooks || now < hold_until_ || quiet_) return;
  answers_ = {own_report()};
  if (session_->is_free()) ask_all();
  tell_hang();
}

// Higher ranks check a little later, so that the waiting ranks do not all ask the others at once:
// by then most have heard that a lower one asks.
WaitLimits Watch::own_limits() const {
  const double notice = notice_, rank = session_->rank();
  const double later = std::min(kTurn * rank, 0.5 * notice * rank / session_->size());
  return {limit_, notice > 0 ? notice + later : 0};
}

// The thread handles answers as they arrive in its loop.
void Watch::look_for_waits() {
  const WaitLimits limits = own_limits();
  if (limits.most != notices_.limits().most || limits.notice != notices_.limits().notice)
    notices_ = WaitNotices(limits);
  const double now = now_seconds();
  const WaitNotices::Say say = notices_.look(now, record_.longest());
  if (say == WaitNotices::Say::is_over) notices_.log_end();
  if (say != WaitNotices::Say::waits || quiet_ || asked_until_ > 0) return;
  wait_answers_.clear();
  asked_until_ = now + std::min(kAnswers, limits.notice);
  send_to_others(Tag::wait_request, {});
}

void Watch::log_wait_when_asked() {
  if (asked_until_ == 0) return;
  const bool is_over = record_.longest() < notices_.limits().notice;
  const bool all = static_cast<int>(wait_answers_.size()) == session_->size() - 1;
  if (!is_over && !all && now_seconds() < asked_until_) return;
  asked_until_ = 0;
  if (is_over) return;
  wait_answers_.push_back(own_report());
  add_silent(wait_answers_);
  notices_.log_wait(wait_answers_);
}

void Watch::send_to_others(Tag tag, const std::string& bytes) {
  for (int r = 0; r < session_->size(); ++r)
    if (r != session_->rank()) send(r, tag, bytes);
}

void Watch::ask_all() {
  asking_ = true;
  send_to_others(Tag::request, {});
  double until = now_seconds() + kAnswers;
  while (now_seconds() < until) {
    read_letters();
    if (static_cast<int>(answers_.size()) == session_->size() && hold_until_ == 0) return;
    until = std::max(until, hold_until_);
    ::usleep(2000);
  }
}

// Adds, in rank order, ranks that have not answered.
void Watch::add_silent(std::vector<RankReport>& answers) const {
  for (int r = 0; r < session_->size(); ++r) {
    const auto same = [r](const RankReport& report) { return report.rank == r; };
    if (std::any_of(answers.begin(), answers.end(), same)) continue;
    RankReport silent;
    silent.rank = r;
    silent.state = RankReport::State::is_silent;
    answers.push_back(silent);
  }
  std::sort(answers.begin(), answers.end(),
            [](const RankReport& a, const RankReport& b) { return a.rank < b.rank; });
}

void Watch::tell_hang() {
  add_silent(answers_);
  log::error("{}", hang_text(answers_, limit_));
  session_->abort(kGivenUp);
}

void Watch::look_for_ended() {
  if (ended_in_run_ != runs_) ended_.clear();
  if (ended_.empty()) return;
  const std::string text = waits_for_ever(record_.report(), ended_, kStuck);
  if (!text.empty()) session_->give_up(text);
}

void Watch::look_for_signal() {
  const bool any_time = limit_ == 0 && notice_ == 0;  // a wait is no reason to report then
  if (any_time || signal_.is_taken() || reported_ || !is_pending(SIGTERM) ||
      record_.longest() < kIgnored)
    return;
  tell_own("received SIGTERM and will stop at the end of its step");
}

void Watch::on_signal() {
  if (launch::read_signals(signal_.file()).empty()) return;
  tell_own("was terminated by SIGTERM");
  // A launcher that sees the end of a process may not read the last of its output.
  if (reported_) std::this_thread::sleep_for(kLastWords);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  ::raise(SIGTERM);
}

void Watch::tell_own(std::string_view why) {
  const RankReport report = own_report();
  if (quiet_ || reported_ || (!report.doing.known() && report.calls.empty())) return;
  reported_ = true;
  const std::string line = line_of(report, {});
  const std::string name = fmt::format("rank {}", report.rank);
  log::error("{} {}{}", name, why, line.substr(name.size()));
}

RankReport Watch::own_report() const {
  RankReport report = record_.report();
  if (ended_at_ > 0) report.state = RankReport::State::has_ended;
  return report;
}

void Watch::announce_end() {
  const double ended_at = ended_at_;
  if (ended_at == 0 || announced_ == runs_ || now_seconds() < ended_at + kLateAtEnd) return;
  announced_ = runs_;
  send_to_others(Tag::ended, fmt::format("{} {}", announced_, own_report().packed()));
}

void Watch::send(int to, Tag tag, std::string bytes) {
  std::erase_if(letters_, [this](const auto& l) { return session_->test({&l->request, 1}); });
  Letter& letter = *letters_.emplace_back(std::make_unique<Letter>());
  letter.bytes = std::move(bytes);
  session_->call("send", [&] {
    return MPI_Isend(letter.bytes.data(), static_cast<int>(letter.bytes.size()), MPI_BYTE, to,
                     static_cast<int>(tag), communicator_, &letter.request);
  });
}

void Watch::read_letters() {
  for (;;) {
    int there = 0, length = 0;
    MPI_Status status;
    session_->call("probe", [&] {
      return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &there, &status);
    });
    if (there == 0) return;
    session_->call("probe", [&] { return MPI_Get_count(&status, MPI_BYTE, &length); });
    std::string bytes(static_cast<size_t>(length), '\0');
    MPI_Request request = MPI_REQUEST_NULL;
    session_->call("receive", [&] {
      return MPI_Irecv(bytes.data(), length, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG,
                       communicator_, &request);
    });
    while (!session_->test({&request, 1})) std::this_thread::yield();
    read_letter(status.MPI_SOURCE, static_cast<Tag>(status.MPI_TAG), bytes);
  }
}

void Watch::read_letter(int from, Tag tag, std::string_view bytes) {
  if (tag == Tag::request) {
    send(from, Tag::report, own_report().packed());
    reported_ = true;
    if (from < session_->rank()) hold_until_ = now_seconds() + kHold;
  } else if (tag == Tag::report) {
    if (asking_) answers_.push_back(RankReport::unpacked(bytes));
  } else if (tag == Tag::wait_request) {
    send(from, Tag::wait_report, own_report().packed());
    // If two ranks ask at once, the lower rank logs.
    if (asked_until_ > 0 && from > session_->rank()) return;
    asked_until_ = 0;
    notices_.logged_elsewhere(now_seconds());
  } else if (tag == Tag::wait_report) {
    const auto same = [from](const RankReport& report) { return report.rank == from; };
    if (asked_until_ > 0 && std::ranges::none_of(wait_answers_, same))
      wait_answers_.push_back(RankReport::unpacked(bytes));
  } else {
    const size_t space = bytes.find(' ');
    const int64_t run = std::stoll(std::string(bytes.substr(0, space)));
    if (run != runs_) return;
    if (ended_in_run_ != run) ended_.clear();
    ended_in_run_ = run;
    ended_.push_back(RankReport::unpacked(bytes.substr(space + 1)));
  }
}

}  // namespace megatron::comm
