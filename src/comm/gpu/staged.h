// Calls on tensors of a GPU through host memory, and the choice between that and NCCL.
#pragma once

#include <memory>

#include "comm/gpu/group.h"
#include "comm/group.h"

namespace megatron::comm {

// A group that makes the calls of another, borrowed, on copies in host memory: between ranks as
// threads that share one GPU, and between processes whose MPI knows no GPU. Reductions have the
// bits of the other group's. Each call waits for the device; of one rank, and of tensors that are
// no GPU's, it is the other group's own call or a copy on the stream.
std::unique_ptr<Group> staged(Group& group);
std::unique_ptr<Group> staged(std::unique_ptr<Group> group);

// The group for tensors of the device: `group` itself, or for a GPU's one that is kept in `made`, by
// way of NCCL or of host memory. Collective. Throws Error where NCCL is asked for and
// two ranks share a GPU, or one cannot use NCCL; where it is not asked for, rank 0 logs the latter.
Group& for_device(Group& group, Device device, std::unique_ptr<Group>& made,
                  GpuBackend backend = GpuBackend::automatic);

}  // namespace megatron::comm
