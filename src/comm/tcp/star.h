// The processes of a run without MPI (torchrun, Kubernetes): each talks to rank 0 over TCP, where a
// thread makes its calls. Meant for small messages of the host: NCCL communicator identifiers,
// numbers, barriers. GPU tensors go through NCCL, or with --distributed-backend gloo through rank
// 0, slowly.
#pragma once

#include <memory>
#include <string>

#include "comm/tcp/rendezvous.h"
#include "comm/wait_limits.h"

namespace megatron::comm {

class Star {
 public:
  virtual ~Star() = default;  // call end() first
  virtual Group& world() = 0;
  virtual void body_begins(WaitLimits limits) = 0;
  // Returns once all processes have called it, or one has failed. If some do not within the time
  // limit of a call, they are named, and all processes end with code 2.
  virtual void end() = 0;
  // Ends all other processes with this code; the caller ends this one.
  virtual void abort(int code) = 0;
};

// Returns once all processes have arrived; throws Error naming the place and those that have not
// arrived within `seconds`. size > 1. If a process ends without end(), the calls of all others
// throw.
std::unique_ptr<Star> make_star(const RendezvousAddress& place, int rank, int size, double seconds);
// Replaces make_star() in a process that fails before it: processes waiting for it throw Error with
// `reason`. Rank 0 waits up to `seconds` for the others, the others for rank 0. Throws Error if
// rank 0 is not there, or its port is in use.
void tell_failed_start(const RendezvousAddress& place, int rank, int size, std::string reason,
                       double seconds);

}  // namespace megatron::comm
