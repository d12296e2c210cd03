// Step time derived from the step's work, for plans without a GPU to measure: uses assumed rates,
// those that the best libraries reach on the GPU that plans are made for (known_gpus.h).
#pragma once

#include <cstdint>
#include <optional>

#include "plan/recorder.h"

namespace megatron::plan {

// Facts about the run that a step's kernels do not show.
struct AssumedRun {
  int64_t micro_batches = 1;  // of this rank per step
  int64_t vocabulary = 0;
  int tensor_ranks = 1;  // that divide the micro-batch
  int64_t experts = 0;   // experts per layer; 0: none
  double stretch = 1;    // factor by which a pipeline's idle time lengthens the micro-batches
};

// Products run at 740 TFLOP/s, smaller ones and those of experts at 715, those of 8-bit floats at
// 1300 and 1150, those of routers, in fp32, at 50; the rate of attention depends on its head size
// and the length of its sequences; everything else moves its bytes at 4.2 TB/s. A weight's gradient
// is accumulated during its product, which hides half of that traffic, or as much as the arithmetic
// takes. Communication between ranks is not included. keeping: the same step without recompute,
// from which `work` differs by the recomputed part. nullopt: for products other than routers' that
// are not in bf16 or fp16, for sums in fp64, and for products of the optimizer.
std::optional<AssumedTime> assumed_time(const StepWork& work, const StepWork& keeping,
                                        const AssumedRun& run);

}  // namespace megatron::plan
