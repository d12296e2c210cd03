// Calls on tensors of a GPU through host memory.
#pragma once

#include <memory>

#include "comm/group.h"

namespace megatron::comm {

// A group that makes the calls of another, borrowed, on copies in host memory: between ranks as
// threads that share one GPU, and between processes whose MPI knows no GPU. Reductions have the
// bits of the other group's. Each call waits for the device; of one rank, and of tensors that are
// no GPU's, it is the other group's own call or a copy on the stream.
std::unique_ptr<Group> staged(Group& group);

// The group for tensors of the device: `group` itself, or for a GPU's a staged one, kept in `made`.
Group& for_device(Group& group, Device device, std::unique_ptr<Group>& made);

}  // namespace megatron::comm
