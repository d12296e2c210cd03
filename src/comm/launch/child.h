// Starting a program without a shell.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/launch/channel.h"

namespace megatron::comm::launch {

struct ChildOptions {
  std::vector<std::string> words;  // program, looked for in PATH where it has no slash; arguments
  std::vector<std::pair<std::string, std::string>> set;  // environment
  std::vector<std::string> unset;
  int input = 0, output = 1, error_output = 2;  // files that become its standard ones
  int at_parents_end = 0;                       // signal that it gets when this process dies
};

// In a process group of its own. Throws Error naming the program when it does not
// start. Not for a process with threads.
pid_t start_child(const ChildOptions& options);

// What a program writes to both its outputs; nothing where it does not start, or runs for longer.
std::optional<std::string> output_of(const std::vector<std::string>& words, double most_seconds);

// A file to poll for these signals, which are blocked for this process from now on.
Descriptor signal_file(const std::vector<int>& signals);
std::vector<int> read_signals(const Descriptor& file);

}  // namespace megatron::comm::launch
