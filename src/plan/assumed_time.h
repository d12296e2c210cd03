// The time of a step by what it does, where there is no GPU to measure: at the rates that the best
// libraries reach on the GPU that plans are made for (known_gpus.h), which are assumed.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/recorder.h"

namespace megatron::plan {

// What is not read off a step's kernels.
struct AssumedRun {
  int64_t micro_batches = 1;  // of the step, of this rank
  int64_t vocabulary = 0;
  int tensor_ranks = 1;  // that divide it
  int64_t experts = 0;   // of a layer; 0: none
  double stretch = 1;    // by which a pipeline's idle time lengthens the micro-batches
};

// Products run at 740 TFLOP/s, smaller ones and those of experts at 715, those of
// routers, in fp32, at 50; attention by its heads' size and the length of
// its sequences; the rest moves its bytes at 4.2 TB/s. A weight's gradient is added up during its
// product, which hides half of that, or as much as its arithmetic takes. Communication between
// ranks is not in it. keeping: the same step without recompute, from which `work` differs by what
// is recomputed. nullopt: of other products than routers' that are not in bf16 or fp16, of sums in
// fp64, or of products of the optimizer.
std::optional<AssumedTime> assumed_time(const StepWork& work, const StepWork& keeping,
                                        const AssumedRun& run);

}  // namespace megatron::plan
