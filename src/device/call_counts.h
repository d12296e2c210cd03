// Counts which of a stream's calls a library computed and which the back-end's own kernels, for
// back-ends that choose at call time.
#pragma once

#include <cstdint>

namespace megatron {

// Only on CUDA; 0 on other devices. Calls captured in a CUDA graph count once, at capture, not when
// the graph is launched.
struct CallCounts {
  int64_t attention_library = 0, attention_own = 0;     // one for each forward and backward call
  int64_t epilogues_fused = 0, epilogues_separate = 0;  // of matrix products with an epilogue

  CallCounts operator-(const CallCounts& before) const {
    return {attention_library - before.attention_library, attention_own - before.attention_own,
            epilogues_fused - before.epilogues_fused,
            epilogues_separate - before.epilogues_separate};
  }
  bool operator==(const CallCounts&) const = default;
};

}  // namespace megatron
