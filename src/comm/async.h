// A group whose calls overlap with what their caller computes.
#pragma once

#include <memory>

#include "comm/group.h"

namespace megatron::comm {

// Takes over a group that nobody else uses. Calls are made on a thread of this object's own, in the
// order in which they were given; each returns at once with a Work whose event is reached when the
// call has ended on this rank. A call that failed throws from the wait, and so does every later
// call. barrier() and split() wait for what was given before. The tensors must not change before
// the wait; several waits for one Work are allowed. Reductions run on one core. seconds() are those
// that the caller waited. On meta, and of a simulated group, calls are made at once. A
// group whose calls are queued is handed back as it is.
std::unique_ptr<Group> async(std::unique_ptr<Group> group);

}  // namespace megatron::comm
