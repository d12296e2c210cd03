// What ranks do in a launched test program; each gives the program's exit code.
#pragma once

#include <functional>
#include <string>

#include "comm/processes.h"

namespace megatron::testing {

// A random sequence of collectives, the same for threads and processes: a digest of all that rank
// got.
std::string digest_of_collectives(comm::Group& world, uint64_t seed, int calls);
// Digest of one reduction that is larger than a chunk.
std::string digest_of_large_reduction(comm::Group& world);

// As the program does: reports an error once, then ends all with the code.
int tell(comm::Processes& processes, int code, const std::function<void()>& body);

// Names and what they do: scenarios.cpp.
int run_scenario(const std::string& name, comm::Processes& processes);
// Those of hang_scenarios.cpp: ranks that wait for what never comes.
int run_hang_scenario(const std::string& name, comm::Processes& processes);

}  // namespace megatron::testing
