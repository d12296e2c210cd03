// Ranks as threads of one process.
#pragma once

#include <functional>

#include "comm/group.h"

namespace megatron::comm {

// Runs body(world) on `ranks` threads, one a rank, and returns when all are done. ranks 1: on the
// calling thread with the group of one rank. When a body throws, the collectives of the other ranks
// throw too, and the first exception is rethrown here. most_seconds: that a call may take; beyond,
// the calls of all ranks throw an Error that tells what each rank does and who has not come
// (comm/watchdog.h); 0: any time.
void run_ranks(int ranks, const std::function<void(Group& world)>& body,
               double most_seconds = kMostSeconds);

}  // namespace megatron::comm
