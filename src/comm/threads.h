// Runs ranks as threads of one process.
#pragma once

#include <functional>

#include "comm/wait_limits.h"

namespace megatron::comm {

class SharedGroup;
// The group of one rank of a SharedGroup (comm/shared_group.h), whose other ranks are threads.
std::unique_ptr<Group> thread_group(std::shared_ptr<SharedGroup> shared, int rank,
                                    std::string_view name);

// Runs body(world) on `ranks` threads, one per rank, and returns when all are done. With one rank
// it runs on the calling thread with the group of one rank. If a body throws, the collectives of
// the other ranks throw too, and the first exception is rethrown here. A call that takes longer
// than limits.notice is logged, with the ranks that have not come; beyond limits.most the calls of
// all ranks throw an Error that says so and what each rank does (comm/watchdog.h).
void run_ranks(int ranks, const std::function<void(Group& world)>& body, WaitLimits limits = {});

}  // namespace megatron::comm
