#include "device/recorded_part.h"

#include <algorithm>
#include <utility>

#include "device/cuda_plugin.h"

namespace megatron {

bool RecordedPart::memory_is_free() const {
  return std::ranges::all_of(
      memory_, [](const Memory& memory) { return memory.arena->is_free(memory.extents); });
}

PartRecording::PartRecording(Runtime& runtime) {
  for (int i = 0; i < kMemoryClasses; ++i) {
    Arena& arena = runtime.arena(static_cast<MemoryClass>(i));
    part_.memory_[static_cast<size_t>(i)].arena = &arena;
    arena.note();
  }
  recording_ = cuda_plugin().record(runtime.stream());
}

RecordedPart PartRecording::finish() {
  part_.work_ = std::exchange(recording_, nullptr)->finish();
  for (RecordedPart::Memory& memory : part_.memory_) memory.extents = memory.arena->noted();
  return std::move(part_);
}

}  // namespace megatron
