// A stretch of a stream's work that is recorded once and then queued as a whole, as often as one
// likes: one call of the host's instead of one for each kernel and copy (CUDA graphs). Addresses and
// numbers are those of the recording; what the work reads lies in memory and may change between.
#pragma once

#include <memory>

namespace megatron {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;  // what is queued goes on; before the stream is destroyed
  virtual void queue() = 0;           // on the stream that it was recorded of
};

// From its making (CudaPlugin::record) to its end, what is queued on the stream is recorded and does
// not run. Streams of the device that wait for an event of it take part from then on, until the
// end, which waits for them; they outlive what was recorded, which is work of theirs, too. One
// thread begins, queues and ends; meanwhile it may not wait for work of the device, nor copy from
// memory that is not pinned (InternalError or Error, and the recording is lost). Threads of other
// streams of the device go on, but copies that wait for the whole device wait for the end of the
// recording.
class StreamRecording {
 public:
  virtual ~StreamRecording() = default;  // what is not finished is dropped
  virtual std::unique_ptr<RecordedWork> finish() = 0;
};

}  // namespace megatron
