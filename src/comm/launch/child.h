// Starts a program without a shell.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/launch/channel.h"

namespace megatron::comm::launch {

struct ChildOptions {
  std::vector<std::string> words;  // program, searched for in PATH if it has no slash; arguments
  std::vector<std::pair<std::string, std::string>> set;  // environment
  std::vector<std::string> unset;
  int input = 0, output = 1, error_output = 2;  // files that become its standard streams
  int at_parents_end = 0;                       // signal that it receives when this process dies
};

// Starts a program in its own process group. Throws Error naming the program if it does not start.
// Must not be called by a process with threads.
pid_t start_child(const ChildOptions& options);

// Output of a program on stdout and stderr; none if it does not start or runs longer.
std::optional<std::string> output_of(const std::vector<std::string>& words, double most_seconds);

// Returns a file descriptor to poll for these signals, which are blocked for this process from now
// on.
Descriptor signal_file(const std::vector<int>& signals);
std::vector<int> read_signals(const Descriptor& file);

}  // namespace megatron::comm::launch
