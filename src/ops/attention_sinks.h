// The sinks of attention as its kernels take them.
#pragma once

#include "autograd/tape.h"

namespace megatron::ops {

// In f32 (f64); undefined for an empty weight.
Tensor wide_sinks(const Weight& sinks, Tape& tape);

// What a node whose weights are {sinks}, or none, hands to a kernel's backward.
struct SinkGradient {
  Tensor values;
  GradSlot gradient;
};
SinkGradient sink_gradient(Backward& backward);

}  // namespace megatron::ops
