// Recorded work (recording.h) and the memory that it uses in a runtime's arenas.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "device/recording.h"
#include "device/stream.h"

namespace megatron {

class RecordedPart {
 public:
  // True if nothing else occupies the work's memory. If false, the work must not be queued, since
  // it would overwrite that.
  bool memory_is_free() const;
  void queue() { work_->queue(); }

 private:
  friend class PartRecording;
  struct Memory {
    Arena* arena = nullptr;  // the runtime's arena during recording
    std::vector<Arena::Extent> extents;
  };
  std::unique_ptr<RecordedWork> work_;
  std::array<Memory, kMemoryClasses> memory_;
};

// From construction to destruction, the work of a CUDA runtime's stream is recorded, by the rules
// of StreamRecording, and allocations from its arenas are noted. The runtime and its arenas are
// borrowed for the lifetime of the recorded work.
class PartRecording {
 public:
  explicit PartRecording(Runtime& runtime);
  RecordedPart finish();

 private:
  RecordedPart part_;
  std::unique_ptr<StreamRecording> recording_;
};

}  // namespace megatron
