// Recorded work (recording.h) and the memory of a runtime's arenas that it takes.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "device/recording.h"
#include "device/stream.h"

namespace megatron {

class RecordedPart {
 public:
  // Whether nobody keeps anything where the work has its memory. Else it may not be queued: it
  // would write over it.
  bool memory_is_free() const;
  void queue() { work_->queue(); }

 private:
  friend class PartRecording;
  struct Memory {
    Arena* arena = nullptr;  // the runtime's when it was recorded
    std::vector<Arena::Extent> extents;
  };
  std::unique_ptr<RecordedWork> work_;
  std::array<Memory, kMemoryClasses> memory_;
};

// From its making to its end, the work of a CUDA runtime's stream is recorded, by the rules of
// StreamRecording, and what is taken of its arenas is noted. The runtime is borrowed, and so are its
// arenas, as long as what was recorded lives.
class PartRecording {
 public:
  explicit PartRecording(Runtime& runtime);
  RecordedPart finish();

 private:
  RecordedPart part_;
  std::unique_ptr<StreamRecording> recording_;
};

}  // namespace megatron
