// Counts which of a stream's calls a library computed and which the back-end's own kernels, for
// back-ends that choose at call time.
#pragma once

#include <cstdint>

namespace megatron {

// Only on CUDA; on other devices all are 0. Calls captured in a CUDA graph count when they are
// captured, and not when the graph is launched.
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
