// Who computed the calls of a stream, where a back-end chooses between a library and kernels of its
// own when it is called.
#pragma once

#include <cstdint>

namespace megatron {

// On CUDA; on other devices all are 0. What is recorded into a CUDA graph counts when it is recorded,
// and not when the graph is launched.
struct CallCounts {
  int64_t attention_library = 0, attention_own = 0;     // forward and backward, a call each
  int64_t epilogues_fused = 0, epilogues_separate = 0;  // of matrix products that have one

  CallCounts operator-(const CallCounts& before) const {
    return {attention_library - before.attention_library, attention_own - before.attention_own,
            epilogues_fused - before.epilogues_fused,
            epilogues_separate - before.epilogues_separate};
  }
  bool operator==(const CallCounts&) const = default;
};

}  // namespace megatron
