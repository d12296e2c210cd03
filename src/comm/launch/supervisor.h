// Starts a launcher with its ranks and stays with them to the end.
#pragma once

#include <string>
#include <vector>

namespace megatron::comm::launch {

struct Job {
  std::vector<std::string> words;  // the launcher, its options, the guard, the program
  std::string launcher_name;       // before its own lines: "mpirun"
  int ranks = 1;
  bool prefix = true;
};

// Prints what the ranks write, whole lines, as they come. SIGINT, SIGTERM, SIGUSR1 and SIGHUP go to
// the ranks, each once; a second SIGINT or SIGTERM ends them at once. When a rank fails, the others
// get 2 s to end by themselves (60 s when it has saved and ended), then SIGTERM, then SIGKILL. Gives
// the exit code of the rank that failed first, 0 when all ended with 0. Throws Error when the
// launcher cannot be started.
int supervise(const Job& job);

}  // namespace megatron::comm::launch
