// This process among those that a launcher started together. What carries it is chosen when the
// program is built: comm/mpi, or comm/alone where there is no MPI.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/wait_limits.h"

namespace megatron::comm {

class Star;

// A place among processes, as the environment names it.
struct ProcessPlace {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host; 0 and 1 where the launcher does not tell
  std::string source;                  // "OMPI_COMM_WORLD_RANK"
};

// A process's place among those that a launcher started, as its environment gives it.
struct Launch {
  std::optional<ProcessPlace> place;  // none: the process was started by itself
  // One line for the log: variables of other launchers that name another place and are not used, or
  // variables that suggest several processes where this one runs alone. Empty: there are none.
  std::string note;
};

// The innermost launcher names the place. It is the first of these that has several processes, else
// the first that names a place:
//   RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all of them (torchrun, Kubernetes)
//   OMPI_COMM_WORLD_*, PMI_*, PMIX_* (with the size of a Slurm step)
//   SLURM_*, of a job step only, not of a batch script itself
//   RANK and WORLD_SIZE of one process
// An empty variable counts as absent. Pure: `variable` gives the environment. Throws Error naming
// variables that contradict each other or are no numbers, and sets that are incomplete where no
// other launcher names a place.
using Variable = std::function<std::optional<std::string>(std::string_view name)>;
Launch find_launch(const Variable& variable);
// The same without RANK and WORLD_SIZE, for a process that an MPI launcher or srun has just
// started.
Launch find_mpi_launch(const Variable& variable);
Variable environment();  // that of this process

// The processes of a run. One object a process, made before threads are. Where a launcher started
// more than one, MPI is initialised, and left by the destructor; but those that RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT tell their places (torchrun, Kubernetes) meet over TCP
// (comm/tcp/star.h).
// Groups may be used from any thread, each by one at a time, and split() by one thread of the
// process at a time. A rank that waits gives its core away. A process that is ended by SIGTERM, as
// those of a launcher are whose other process has died, says first what it did.
class Processes {
 public:
  // Throws Error when a launcher started several processes and this build has no MPI, or MPI finds
  // other processes than the launcher named (a program of another MPI: the text says which).
  // largest_message: bytes; what is larger travels in pieces.
  explicit Processes(int64_t largest_message = int64_t{1} << 30);
  // Waits until every process of the run has come here. While an exception unwinds the stack it
  // waits for nobody: the exit code that follows makes the launcher end the others.
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
  // All processes; single() where there is one. Reductions are bit for bit those of threads.
  Group& group();
  std::string description() const;  // "4 processes under Open MPI 4.1.4", "one process"

  // Runs body(world) on every rank: launched: this process is one rank of size(), and `ranks` must
  // equal it; else `ranks` threads (comm/threads.h). Of a call that takes longer than
  // limits.notice one process logs who waits for whom; beyond limits.most one prints what each
  // rank does and who has not come, and all end with code 2.
  void run(int ranks, const std::function<void(Group& world)>& body, WaitLimits limits = {});

  // Ends all processes of the run at once with this exit code (1-255), after this process has said
  // why. Returns only where there is one process.
  void abort(int code);
  // Called before a failure is reported. Ranks above 0 sleep for three seconds, in which abort() of a
  // lower rank ends them: a failure that all ranks have alike (a wrong flag) is reported once, by rank
  // 0, and one rank's own failure is reported by it, that much later.
  void wait_for_lead() const;

 private:
  struct State;
  // Seconds that the processes of a rendezvous have to come.
  static constexpr double kRendezvousSeconds = 300;
  bool meets() const { return size() > 1 && launch_.place->source == "RANK"; }
  void body_begins(WaitLimits limits);
  void body_ended();
  Star* star();  // null: MPI's, or one process
  void end_star(bool failed);
  void abort_star(int code);
  void be_quiet() const;  // this process says itself why it ends

  Launch launch_;
  bool aborted_ = false;
  std::unique_ptr<State> state_;
};

// Of a process that fails before it makes its Processes: the others of its run, where they meet over
// TCP, fail with this reason, too, and do not wait for it. Waits for them, but only for seconds.
void tell_failed_start(const std::string& reason);

}  // namespace megatron::comm
