// The processes of a run that no MPI connects (torchrun, Kubernetes): each talks to rank 0 over TCP,
// where its calls are made as those of a thread. Meant for small messages of the host: names of NCCL
// communicators, numbers, barriers; a GPU's tensors go through NCCL, or with --distributed-backend
// gloo through rank 0, slowly.
#pragma once

#include <memory>
#include <string>

#include "comm/tcp/rendezvous.h"
#include "comm/wait_limits.h"

namespace megatron::comm {

class Star {
 public:
  virtual ~Star() = default;  // after end()
  virtual Group& world() = 0;
  virtual void body_begins(WaitLimits limits) = 0;
  // Returns when all processes have come to it, or one has failed. Where some do not come within
  // the time of a call, they are named, and all processes end with code 2.
  virtual void end() = 0;
  // All processes end with this code, but for this one, whose caller ends it.
  virtual void abort(int code) = 0;
};

// Returns when all processes have come; throws Error naming the place and those that have not within
// `seconds`. size > 1. Where a process ends without end() the calls of all others throw.
std::unique_ptr<Star> make_star(const RendezvousAddress& place, int rank, int size, double seconds);
// In place of make_star() where a process fails before it: those that wait for it throw Error with
// `reason`. Rank 0 waits up to `seconds` for the others, the others for rank 0. Throws Error where
// rank 0 is not there, or its port is taken.
void tell_failed_start(const RendezvousAddress& place, int rank, int size, std::string reason,
                       double seconds);

}  // namespace megatron::comm
