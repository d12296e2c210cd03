// Breakdown of a step's time on one rank.
#pragma once

namespace megatron::report {

// Seconds. Measured only if StepOptions::timing_level requests it; the device is then synchronized
// at the end of each part.
struct StepTimes {
  // Level 1.
  double forward_backward = 0;  // all micro-batches, including communication between stages
  double reduction = 0;         // of gradients over the ranks, as far as it is not overlapped
  double norm = 0;              // of the gradients
  double update = 0;            // of the weights, including the gather after it
  // Level 2: parts of forward_backward.
  double forward = 0, backward = 0;
};

}  // namespace megatron::report
