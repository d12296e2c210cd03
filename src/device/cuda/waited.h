// The streams of a GPU whose work a copy that is done at once waits for: all but those set aside.
#pragma once

#include <memory>

#include "device/cuda/stream.h"

namespace megatron::cuda {

// Any thread.
class WaitedStreams {
 public:
  explicit WaitedStreams(int devices);
  ~WaitedStreams();
  // From now on until the stream ends, or is set aside.
  void add(CudaStream& stream);
  // Waits for what the streams of the device have queued so far.
  void wait(int device);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// For streams that wait for other ranks' host programs, where nothing but the stream itself reads
// what it writes.
void set_aside(CudaStream& stream);

}  // namespace megatron::cuda
