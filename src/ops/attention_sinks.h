// Attention sinks in the form that attention's kernels take.
#pragma once

#include "ops/attention.h"

namespace megatron::ops {

// The sinks of the call's heads, of which there are `heads`, in f32 (f64); undefined without sinks.
Tensor sinks_of(const AttentionOptions& options, int64_t heads, Tape& tape);

// Arguments that a node with weights {sinks}, or none, passes to a kernel's backward for `heads`
// heads from `first` on. The gradient of other heads' sinks is 0.
struct SinkGradient {
  Tensor values;
  GradSlot gradient;
};
SinkGradient sink_gradient(Backward& backward, int64_t first, int64_t heads);

}  // namespace megatron::ops
