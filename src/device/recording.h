// A part of a stream's work that is recorded once and then queued as a whole any number of times:
// one host call instead of one for each kernel and copy (CUDA graphs). Addresses and scalars are
// those of the recording; the work's inputs are in memory and may change between replays.
#pragma once

#include <memory>

namespace megatron {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;  // what is queued goes on; before the stream is destroyed
  virtual void queue() = 0;           // on the stream that it was recorded of
};

// From construction (CudaPlugin::record) to its end, work queued on the stream is recorded and does
// not run. Streams of the device that wait for one of its events take part from then on, until the
// end, which waits for them; they must outlive the recorded work, which includes theirs. One thread
// begins, queues and ends; meanwhile it must not wait for work of the device, nor copy from
// pageable memory (InternalError or Error, and the recording is lost). Threads of other streams of
// the device continue, but copies that wait for the whole device wait for the end of the recording.
class StreamRecording {
 public:
  virtual ~StreamRecording() = default;  // what is not finished is dropped
  virtual std::unique_ptr<RecordedWork> finish() = 0;
};

}  // namespace megatron
