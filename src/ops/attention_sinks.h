// Attention sinks in the form that attention's kernels take.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// The sinks in f32 (f64); undefined for an empty weight.
Tensor wide_sinks(const Weight& sinks, Tape& tape);

// Arguments that a node with weights {sinks}, or none, passes to a kernel's backward.
struct SinkGradient {
  Tensor values;
  GradSlot gradient;
};
SinkGradient sink_gradient(Backward& backward);

}  // namespace megatron::ops
