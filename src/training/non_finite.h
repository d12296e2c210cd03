// Finds the kernel that produced the first NaN or infinity of a step.
#pragma once

#include <span>
#include <string>

#include "comm/group.h"
#include "models/stage.h"
#include "training/step.h"

namespace megatron::training {

// Runs forward and backward of the micro-batches again, whose bits repeat (dropout is keyed by
// sample), and looks at what every kernel reads and writes, then at the reduced gradients and at
// their norm. The first kernel that writes a value that is not finite is reported:
//   "gemm in layers.1 (forward of micro-batch 0, rank 1) wrote inf to out [64, 48] f32 at [3, 7],
//    12 elements in all; it read a [64, 32] f32 up to 2e+30, b [48, 32] f32 up to 3e+20 =
//    layers.1.mlp.up.weight, all finite"
// with the parameter where an operand is one, or its gradient; where an input was not finite
// already, that one with its place; and the parameters that were not finite before the step, of any
// rank.
//
// Several ranks: each finds its own first, and one of these is reported: of the earliest
// micro-batch, forward before backward, the virtual stages of the model in the order of that pass,
// then the calls of a rank, then the lowest rank. Where one call of a step went wrong, that is the
// one that a single rank tells; of several, a rank tells that which its own schedule came to first.
// What a rank received, as an activation or within a sum, was made by another, so it counts only
// where no rank has any other finding; the report then says that no kernel made it.
//
// What counts as not finite, by operand: NaN everywhere. Infinity everywhere but -infinity in
// `lse`, of attention and of softmax, which is right for a query that sees no key
// (kernels/attention.h), and in `stats`, where it is a label that lies on another tensor-parallel
// rank (kernels/cross_entropy.h). Scores are masked within the kernels and never stored, so none is
// -infinity by right; nor is a mean, a rstd (epsilon is added under the root), a loss, or a weight
// of a masked token, which is 0. Integers are passed over. What a kernel reads decides only where a
// bad value came from, never that there is one: rows that no token looks up may hold anything.
//
// Collective over `ranks`, to which those of the step belong; the same text on all of them.
// Parameters, optimizer state and the loss scale are left as they are; gradients may hold anything
// afterwards. Watchers and listeners are put back.
std::string first_non_finite(TrainStep& step, std::span<const corpus::HostBatch> micro_batches,
                             comm::Group& ranks, Runtime& runtime);

}  // namespace megatron::training
