// Records a part of a stream's work once and then queues it as a whole any number of times, with
// one host call instead of one per kernel and copy (CUDA graphs). Addresses and scalars are those
// of the recording; the work's inputs are in memory and may change between replays.
#pragma once

#include <memory>

namespace megatron {

class RecordedWork {
 public:
  // Queued work continues; must precede the stream's destruction.
  virtual ~RecordedWork() = default;
  virtual void queue() = 0;  // on the stream that it was recorded from
};

// From construction (CudaPlugin::record) to its end, work queued on the stream is recorded and does
// not run. Streams of the device that wait for one of its events join the recording from then on,
// and its end waits for them. They must outlive the recorded work, which includes theirs. A single
// thread begins, queues and ends; meanwhile it must not wait for work of the device, nor copy from
// pageable memory (InternalError or Error, and the recording is lost). Threads of other streams of
// the device continue, but copies that wait for the whole device wait for the end of the recording.
class StreamRecording {
 public:
  virtual ~StreamRecording() = default;  // drops an unfinished recording
  virtual std::unique_ptr<RecordedWork> finish() = 0;
};

}  // namespace megatron
