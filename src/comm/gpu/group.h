// A group whose ranks each have a GPU: calls on GPU tensors go through NCCL.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"

namespace megatron::comm {

// Transport of calls on GPU tensors. automatic: NCCL if every rank has its own GPU.
enum class GpuBackend { automatic, nccl, gloo };

// Wraps a borrowed group that has a member(): calls on host memory, barriers and splits go through
// that group, calls on GPU tensors through NCCL. The latter are queued on a stream of this group,
// which waits for the work queued so far on the caller's stream; Work::done is a point on that
// stream, and no call waits for the device. Sums of f32, f64 and integers have NCCL's order, fixed
// for a machine and its ranks; all other reductions add in rank order and round once, with the same
// bits as the other groups. A message is copied before its call returns its Work, so the sender
// continues even if the receiver has not arrived.
//
// Collectives may be recorded with the caller's stream (device/recording.h), on all ranks or on
// none, after they have been made once without recording; messages may not be recorded. Recorded
// work must be destroyed before the group.
//
// Communicators are made by the first call that needs them: one per group, and one for each pair
// and direction of messages. The ranks' calls are not compared (NCCL cannot): ranks that differ
// wait for each other until the call times out, and the report says what each rank is in. If a rank
// or NCCL fails, everything queued is abandoned: calls, and waits of the caller's stream, throw.
std::unique_ptr<Group> gpu_group(Group& host, Device device);

// Empty if each rank of the group has its own GPU; otherwise names two ranks that share one.
// Collective.
std::string shared_gpu(Group& host, Device device);

// Opens NCCL. Empty if all ranks have it in the same version; otherwise says which rank has none
// and why, or has another version, and what to do: the same text on all ranks. Collective.
std::string unusable_nccl(Group& host);

}  // namespace megatron::comm
