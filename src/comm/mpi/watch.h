// Watches this process as one of a run: a run without progress ends and says why, and a process
// that is ended by others says what it was doing.
#pragma once

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/launch/channel.h"
#include "comm/mpi/session.h"
#include "comm/rank_record.h"
#include "comm/wait_limits.h"
#include "comm/wait_notices.h"

namespace megatron::comm {

// Makes SIGTERM readable from a file, in this thread and all threads created after construction;
// must be made before MPI starts its own threads.
class TermSignal {
 public:
  TermSignal();
  ~TermSignal();
  TermSignal(const TermSignal&) = delete;
  TermSignal& operator=(const TermSignal&) = delete;

  bool is_taken() const { return file_.open(); }  // false if someone else blocked it before
  const launch::Descriptor& file() const { return file_; }

 private:
  sigset_t mask_before_;
  launch::Descriptor file_;
};

// One per process, with its own thread and communicator. Reactions:
// - A call of this process that takes longer than limits.notice: asks all processes what they are
// doing, and logs who waits for whom; of several waiting processes only one does so.
// - A call that takes longer than limits.most: asks again, prints one report and ends all processes
// with kGivenUp.
// - A call that waits for a process whose body has ended throws.
// - SIGTERM, from a launcher after another process has died, or from a person: prints one line with
// what this process was doing, then lets the signal end it as usual. If other code has blocked
// SIGTERM before (base/signal_watch.h) and does not take it while a call waits, only prints the
// line; prints nothing if calls may wait without limit (WaitLimits 0, 0).
class Watch {
 public:
  // Collective. signal: borrowed.
  Watch(std::shared_ptr<Session> session, const TermSignal& signal);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void close();  // collective; before MPI ends

  void body_begins(WaitLimits limits);
  void body_ended();
  void be_quiet();  // the program reports itself why it ends

 private:
  enum class Tag { request = 1, report, ended, wait_request, wait_report };
  struct Letter {
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void run();
  void look();
  void look_for_hang();
  void look_for_waits();
  WaitLimits own_limits() const;
  void log_wait_when_asked();
  void look_for_ended();
  void look_for_signal();
  void on_signal();
  void read_letters();
  void read_letter(int from, Tag tag, std::string_view bytes);
  void send(int to, Tag tag, std::string bytes);
  void announce_end();
  void ask_all();
  void send_to_others(Tag tag, const std::string& bytes);
  void add_silent(std::vector<RankReport>& answers) const;
  [[noreturn]] void tell_hang();
  RankReport own_report() const;
  void tell_own(std::string_view why);

  std::shared_ptr<Session> session_;
  RankRecord& record_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  const TermSignal& signal_;
  launch::Pipe stop_;

  std::atomic<double> limit_ = 0, notice_ = 0,
                      ended_at_ = 0;  // ended_at_: 0 while a body runs, or if none does
  std::atomic<int64_t> runs_ = 0;
  std::atomic<bool> quiet_ = false;

  // Used only by the watch thread.
  int overdue_ = 0;        // consecutive checks that found a call overdue
  int64_t announced_ = 0;  // number of the run whose end was announced
  bool asking_ = false, reported_ = false;
  double hold_until_ = 0;  // a lower rank asks and will report
  std::vector<RankReport> answers_, ended_;
  int64_t ended_in_run_ = 0;
  WaitNotices notices_;
  // Time until which the others may answer whom they wait for; 0: not asked.
  double asked_until_ = 0;
  std::vector<RankReport> wait_answers_;
  std::vector<std::unique_ptr<Letter>> letters_;
  std::thread thread_;
};

}  // namespace megatron::comm
