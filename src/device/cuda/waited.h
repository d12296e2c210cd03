// The streams of a GPU whose work a synchronous copy waits for: all except those set aside.
#pragma once

#include <memory>

#include "device/cuda/stream.h"

namespace megatron::cuda {

// Thread-safe.
class WaitedStreams {
 public:
  explicit WaitedStreams(int devices);
  ~WaitedStreams();
  // Adds a stream until it ends or is set aside.
  void add(CudaStream& stream);
  // Waits for the work that the device's streams have queued so far.
  void wait(int device);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// For streams that wait for other ranks' host programs, if only the stream itself reads what it
// writes.
void set_aside(CudaStream& stream);

}  // namespace megatron::cuda
