// Calls on GPU tensors through host memory, and the choice between that and NCCL.
#pragma once

#include <memory>

#include "comm/gpu/group.h"
#include "comm/group.h"

namespace megatron::comm {

// Makes the calls of another, borrowed group on copies in host memory: for ranks as threads that
// share one GPU, and for processes whose MPI does not support GPUs. Reductions have the same bits
// as the other group's. Each call waits for the device. With a single rank, or for tensors not on a
// GPU, it is the other group's own call or a copy on the stream.
std::unique_ptr<Group> staged(Group& group);
std::unique_ptr<Group> staged(std::unique_ptr<Group> group);

// Returns the group for tensors of the device: `group` itself, or for a GPU a group kept in `made`
// that uses NCCL or host memory. Collective. Throws Error if NCCL is requested and two ranks share
// a GPU or one cannot use NCCL; if it is not requested, rank 0 logs the latter.
Group& for_device(Group& group, Device device, std::unique_ptr<Group>& made,
                  GpuBackend backend = GpuBackend::automatic);

}  // namespace megatron::comm
