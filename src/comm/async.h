// A group whose calls overlap with their caller's compute.
#pragma once

#include <memory>

#include "comm/group.h"

namespace megatron::comm {

// Takes over a group that nobody else uses. Calls are made on a thread owned by this object, in the
// order in which they were given. Each returns at once with a Work whose event is reached when the
// call has ended on this rank. A failed call throws from the wait, as does every later call.
// barrier() and split() wait for all earlier calls. The tensors must not change before the wait; a
// Work may be waited for several times. Reductions run on one core. seconds() counts the time that
// the caller waited. On meta and for a simulated group, calls are made at once. A group whose calls
// are queued is returned unchanged.
std::unique_ptr<Group> async(std::unique_ptr<Group> group);

}  // namespace megatron::comm
