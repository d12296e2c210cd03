// This process among those that a launcher started together. The implementation is chosen when the
// program is built: comm/mpi, or comm/alone without MPI.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/wait_limits.h"

namespace megatron::comm {

class Star;

// A place among processes, as given by the environment.
struct ProcessPlace {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host; 0 and 1 if the launcher does not say
  std::string source;                  // "OMPI_COMM_WORLD_RANK"
};

// This process's place among those that a launcher started, as given by its environment.
struct Launch {
  std::optional<ProcessPlace> place;  // none: the process was started without a launcher
  // One line for the log: variables of other launchers that name another place and are not used, or
  // variables that suggest several processes although this one runs alone. Empty: neither.
  std::string note;
};

// The innermost launcher determines the place. It is the first of these that has several processes,
// otherwise the first that gives a place:
//   RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all of them (torchrun, Kubernetes)
//   OMPI_COMM_WORLD_*, PMI_*, PMIX_* (with the size of a Slurm step)
//   SLURM_*, of a job step only, not of a batch script itself
//   RANK and WORLD_SIZE of one process
// An empty variable counts as absent. Pure: `variable` returns the environment's values. Throws
// Error naming variables that contradict each other or are not numbers, and incomplete sets if no
// other launcher gives a place.
using Variable = std::function<std::optional<std::string>(std::string_view name)>;
Launch find_launch(const Variable& variable);
// The same without RANK and WORLD_SIZE, for a process that an MPI launcher or srun has just
// started.
Launch find_mpi_launch(const Variable& variable);
Variable environment();  // of this process

// The processes of a run. One object per process, made before threads are started. If a launcher
// started more than one, MPI is initialized, and finalized by the destructor; but processes that
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT give their places (torchrun, Kubernetes) meet over
// TCP (comm/tcp/star.h). Groups may be used from any thread, each by one thread at a time, and
// split() by one thread of the process at a time. A waiting rank yields its core. A process that is
// ended by SIGTERM, as a launcher's processes are when another one has died, first says what it was
// doing.
class Processes {
 public:
  // Throws Error if a launcher started several processes and this build has no MPI, or if MPI finds
  // other processes than the launcher named (a program of another MPI: the text says which).
  // largest_message: bytes; larger messages are sent in pieces.
  explicit Processes(int64_t largest_message = int64_t{1} << 30);
  // Waits until every process of the run has arrived here. While an exception unwinds the stack it
  // does not wait: the resulting exit code makes the launcher end the others.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  bool launched() const { return launch_.place.has_value(); }
  const std::string& note() const { return launch_.note; }  // Launch::note
  int rank() const { return launch_.place ? launch_.place->rank : 0; }
  int size() const { return launch_.place ? launch_.place->size : 1; }
  int local_rank() const { return launch_.place ? launch_.place->local_rank : 0; }
  int local_size() const { return launch_.place ? launch_.place->local_size : 1; }  // on this host
  bool lead() const { return rank() == 0; }
  // The group of all processes; single() if there is only one. Reductions have the same bits as
  // those of threads.
  Group& group();
  std::string description() const;  // "4 processes under Open MPI 4.1.4", "one process"

  // Runs body(world) on every rank. If launched, this process is one rank of size(), and `ranks`
  // must equal it; otherwise on `ranks` threads (comm/threads.h). If a call takes longer than
  // limits.notice, one process logs who waits for whom; beyond limits.most, one prints what each
  // rank does and who has not come, and all end with code 2.
  void run(int ranks, const std::function<void(Group& world)>& body, WaitLimits limits = {});

  // Ends all processes of the run at once with this exit code (1-255), after this process has
  // reported the reason. Returns only if there is a single process.
  void abort(int code);
  // Called before a failure is reported. Ranks above 0 sleep for three seconds, in which abort() of
  // a lower rank ends them: a failure common to all ranks (a wrong flag) is reported once, by rank
  // 0, and a failure of one rank is reported by that rank, three seconds later.
  void wait_for_lead() const;

 private:
  struct State;
  // Seconds within which the processes of a rendezvous must arrive.
  static constexpr double kRendezvousSeconds = 300;
  bool meets() const { return size() > 1 && launch_.place->source == "RANK"; }
  void body_begins(WaitLimits limits);
  void body_ended();
  Star* star();  // null with MPI, or with a single process
  void end_star(bool failed);
  void abort_star(int code);
  void be_quiet() const;  // this process reports itself why it ends

  Launch launch_;
  bool aborted_ = false;
  std::unique_ptr<State> state_;
};

// Called by a process that fails before it makes its Processes: the others of its run, if they meet
// over TCP, fail with this reason, too, instead of waiting for it. Waits for them for a few seconds
// at most.
void tell_failed_start(const std::string& reason);

}  // namespace megatron::comm
