// A group whose ranks have a GPU each: calls on their tensors go through NCCL.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"

namespace megatron::comm {

// What carries calls on a GPU's tensors. automatic: NCCL where every rank has a GPU of its own.
enum class GpuBackend { automatic, nccl, gloo };

// A group that makes the calls of another, borrowed, which has a member(): those on host memory,
// barriers and splits through that one, those on the GPU's tensors through NCCL. They are queued on
// a stream of the group's own, which waits for what the caller's stream has so far; Work::done is a
// point of that stream, and no call waits for the device. Sums of f32, f64 and integers have NCCL's
// order, fixed for a machine and its ranks; all other reductions add in rank order and round once,
// with the bits of the other groups. A message is copied before its call returns its Work, so that
// the sender goes on whether or not the receiver has come.
//
// Where the caller's stream is recorded (device/recording.h), so are collectives, of all ranks or of
// none, once they have been made as ever; messages may not be. Recorded work is given up before the
// group.
//
// Communicators are made by the first call that needs them: one a group, and one for each pair and
// direction of messages. What the ranks call is not compared (NCCL cannot): ranks that differ wait
// for each other until the time of a call is over, and the report says what each is in. Where a
// rank fails, or NCCL does, all that is queued is given up: calls, and waits of the caller's
// stream, throw.
std::unique_ptr<Group> gpu_group(Group& host, Device device);

// Empty where each rank of the group has a GPU of its own; else which two share one. Collective.
std::string shared_gpu(Group& host, Device device);

// Opens NCCL. Empty where all ranks have it, in one version; else which has none and why, or another
// version, and what to do: the same words on all ranks. Collective.
std::string unusable_nccl(Group& host);

}  // namespace megatron::comm
