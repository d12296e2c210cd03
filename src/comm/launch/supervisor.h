// Starts a launcher with its ranks and supervises them to the end.
#pragma once

#include <string>
#include <vector>

namespace megatron::comm::launch {

struct Job {
  std::vector<std::string> words;  // the launcher, its options, the guard, the program
  std::string launcher_name;       // prefix of its own lines: "mpirun"
  int ranks = 1;
  bool prefix = true;
};

// Prints the ranks' output line by line as it arrives. SIGINT, SIGTERM, SIGUSR1 and SIGHUP are
// forwarded to the ranks, each once; a second SIGINT or SIGTERM ends them at once. When a rank
// fails, the others get 2 s to end by themselves (60 s if it ended after saving), then SIGTERM,
// then SIGKILL. Returns the exit code of the rank that failed first, or 0 if all ended with 0.
// Throws Error if the launcher cannot be started.
int supervise(const Job& job);

}  // namespace megatron::comm::launch
