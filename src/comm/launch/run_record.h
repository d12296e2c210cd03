// Record of how the ranks of a run ended, the action that is due, and the final verdict. Pure: the
// time is passed in, in seconds.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace megatron::comm::launch {

constexpr int kSavedAndEnded = 4;       // exit code of a training run that saved after a signal
constexpr double kGrace = 2;            // seconds for the others to end by themselves
constexpr double kGraceToSave = 60;     // the same if the first ended with kSavedAndEnded
constexpr double kGraceAfterTerm = 5;   // seconds from SIGTERM to SIGKILL after that
constexpr double kGraceOfLauncher = 5;  // seconds for the launcher after its ranks have ended

enum class Step { none, terminate, kill };

class RunRecord {
 public:
  explicit RunRecord(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  void started() { ++started_; }
  // status is waitpid's. asked: a launcher or this run told the rank to end.
  void ended(int rank, int status, bool asked, double now);
  void lost(int rank, double now);              // its guard is gone, so there is no status
  void launcher_ended(int status, double now);  // status as waitpid gives it

  int started_count() const { return started_; }
  bool all_ended() const { return ended_ == static_cast<int>(ranks_.size()); }
  bool failed() const { return first_failure_at_.has_value(); }
  // Action that is due now for the ranks that still run; each is reported once.
  Step due(double now);
  void ask_to_end(double now);  // requests that all end at once, whatever happened to others

  int exit_code() const;        // 0 only if every rank ended with 0
  std::string verdict() const;  // one line; empty if the exit code is 0

 private:
  struct Rank {
    bool over = false, asked = false, is_lost = false;
    int status = 0;
    int order = 0;  // position in the order in which ranks ended
    bool good() const { return over && !is_lost && status == 0; }
  };
  void over(int rank, double now);
  const Rank* first() const;  // the rank that failed first
  int code_of(const Rank& rank) const;

  std::vector<Rank> ranks_;
  int started_ = 0, ended_ = 0;
  std::optional<int> launcher_status_;
  std::optional<double> first_failure_at_, terminated_at_;
  bool saved_ = false, killed_ = false;
};

}  // namespace megatron::comm::launch
