// A group whose ranks are processes.
#pragma once

#include <memory>

#include "comm/group.h"
#include "comm/mpi/session.h"

namespace megatron::comm {

// The group of all processes, of which there are at least two. largest_message: bytes, > 0.
std::unique_ptr<Group> mpi_world(std::shared_ptr<Session> session, int64_t largest_message);

}  // namespace megatron::comm
