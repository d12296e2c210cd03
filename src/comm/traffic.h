// Traffic of collectives: observed on a real group, or counted on a simulated one.
#pragma once

#include <memory>
#include <string_view>

#include "comm/group.h"

namespace megatron::comm {

// One call of a group, as seen by one rank.
struct Traffic {
  std::string_view collective;  // "all_reduce", "all_gather", "send" ...
  std::string_view call;        // its name
  int ranks = 1;                // of the group
  int64_t bytes = 0;            // of the rank's own tensor: the larger of input and output
  int64_t to_others = 0;        // of all_to_all: bytes whose destination is another rank
  bool overlaps = false;        // made by a group whose calls overlap with compute (comm/async.h)
  double began = 0, ended = 0;  // seconds of the steady clock (base/clock.h)
};

// Bytes that the calling rank sends over its link by the best known algorithm: 2 (n-1)/n of
// all_reduce's bytes, (n-1)/n of all_gather's and reduce_scatter's, all of broadcast's and send's,
// all_to_all's to other ranks, 0 of recv's and barrier's (Thakur et al. 2005).
double sent_bytes(const Traffic& traffic);

class TrafficListener {
 public:
  virtual ~TrafficListener() = default;
  virtual void communicated(const Traffic& traffic) = 0;
};

// Wraps a group and reports every completed call to the listener; both are borrowed. Groups split
// from it report, too. The listener is called only by this thread: calls made by other threads
// (comm/async.h) are reported with this thread's next call.
std::unique_ptr<Group> observed(Group& group, TrafficListener& listener);

// Simulates rank `rank` of `size`: calls check their arguments, move nothing and never wait. For
// meta tensors, of any size. split() returns rank `key` of `members` ranks.
std::unique_ptr<Group> simulated(int rank, int size);

}  // namespace megatron::comm
