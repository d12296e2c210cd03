// Scenarios that the ranks of a launched test program run. Each returns the program's exit code.
#pragma once

#include <functional>
#include <string>

#include "comm/processes.h"

namespace megatron::testing {

// Runs a random sequence of collectives, the same for threads and processes. Returns a digest of
// all data that the rank received.
std::string digest_of_collectives(comm::Group& world, uint64_t seed, int calls);
// Digest of one reduction that is larger than a chunk.
std::string digest_of_large_reduction(comm::Group& world);

// Handles errors as the program does: reports an error once, then ends all ranks with the code.
int tell(comm::Processes& processes, int code, const std::function<void()>& body);

// Runs the scenario with this name from scenarios.cpp.
int run_scenario(const std::string& name, comm::Processes& processes);
// Runs a scenario of hang_scenarios.cpp, in which ranks wait for calls that never come.
int run_hang_scenario(const std::string& name, comm::Processes& processes);

}  // namespace megatron::testing
