// Finds the kernel that produced the first NaN or infinity of a step.
#pragma once

#include <span>
#include <string>

#include "comm/group.h"
#include "models/stage.h"
#include "training/step.h"

namespace megatron::training {

// Runs forward and backward of the micro-batches again, with the same bits (dropout is keyed by
// sample), and inspects the inputs and outputs of every kernel, then the reduced gradients and
// their norm. Reports the first kernel that writes a value that is not finite:
//   "gemm in layers.1 (forward of micro-batch 0, rank 1) wrote inf to out [64, 48] f32 at [3, 7],
//    12 elements in all; it read a [64, 32] f32 up to 2e+30, b [48, 32] f32 up to 3e+20 =
//    layers.1.mlp.up.weight, all finite"
// An operand that is a parameter or its gradient is named. An input that was already not finite is
// reported with its position. Parameters of any rank that were not finite before the step are
// listed.
//
// With several ranks, each finds its own first kernel, and the earliest of these is reported: by
// micro-batch, forward before backward, virtual stage in the order of that pass, call within the
// rank, then rank. If a single call of the step went wrong, this is the one that a run on one rank
// would report; if several did, each rank reports the first in its own schedule. A bad value that a
// rank received, as an activation or within a sum, was produced by another rank, so it is reported
// only if no rank found anything else; the report then says that no kernel produced it.
//
// NaN is bad in every operand. Infinity is bad as well, with two exceptions: -infinity in `lse` of
// attention and of softmax, which is correct for a query that sees no key (kernels/attention.h),
// and in `stats`, for a label on another tensor-parallel rank (kernels/cross_entropy.h). Nothing
// else may be -infinity: scores are masked within the kernels and never stored, epsilon is added
// under the root of a rstd, and the weight of a masked token is 0. Integers are not inspected. Bad
// inputs only explain where a bad output came from and are never reported alone, because rows that
// no token looks up may hold any value.
//
// Collective over `ranks`, which include those of the step; all get the same text. Parameters,
// optimizer state and the loss scale are unchanged, and watchers and listeners are restored;
// gradients are undefined afterwards.
std::string first_non_finite(TrainStep& step, std::span<const corpus::HostBatch> micro_batches,
                             comm::Group& ranks, Runtime& runtime);

}  // namespace megatron::training
