// What collectives move: seen on a group that works, or counted on one that only pretends.
#pragma once

#include <memory>
#include <string_view>

#include "comm/group.h"

namespace megatron::comm {

// One call of a group's, as one rank sees it.
struct Traffic {
  std::string_view collective;  // "all_reduce", "all_gather", "send" ...
  std::string_view call;        // its name
  int ranks = 1;                // of the group
  int64_t bytes = 0;            // of the rank's own tensor: the larger of what it gives and gets
  double began = 0, ended = 0;  // seconds of the steady clock (base/clock.h)
};

// Bytes that the call's rank sends over its link by the best known algorithm: 2 (n-1)/n of
// all_reduce's bytes, (n-1)/n of all_gather's, reduce_scatter's and all_to_all's, all of
// broadcast's and send's, 0 of recv's and barrier's (Thakur et al. 2005).
double sent_bytes(const Traffic& traffic);

class TrafficListener {
 public:
  virtual ~TrafficListener() = default;
  virtual void communicated(const Traffic& traffic) = 0;
};

// The group, borrowed as the listener is; every call is reported once it is done. Groups split from it
// tell, too. The listener is called by this thread only: calls made by others (comm/async.h) are
// reported with this one's next.
std::unique_ptr<Group> observed(Group& group, TrafficListener& listener);

// Rank `rank` of `size` that do not exist: calls check their arguments, move nothing and never
// wait. For meta tensors, any size. split() gives the key-th of `members` ranks.
std::unique_ptr<Group> simulated(int rank, int size);

}  // namespace megatron::comm
