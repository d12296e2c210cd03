// Loss on held-out samples.
#pragma once

#include "comm/group.h"
#include "training/corpus.h"
#include "training/step.h"

namespace megatron::training {

// Mean loss of samples [first, first + count) of a set, divided over the ranks of the group; every
// rank gets the sum over all. Batches have micro_batch sequences; the order of summation is that of
// the ranks.
LossSum evaluate(const models::Stage& stage, DType type, const data::Dataset& set, int64_t first,
                 int64_t count, int64_t micro_batch, int64_t seq_length, comm::Group& data_parallel,
                 Runtime& runtime, const StepOptions& options);
// The same of every sample of a set, as data::FullPassSampler divides them.
LossSum evaluate_all(const models::Stage& stage, DType type, const data::Dataset& set,
                     int64_t micro_batch, int64_t seq_length, comm::Group& data_parallel,
                     Runtime& runtime, const StepOptions& options);

// Entropy in nats of the counted labels of the same samples under their own frequencies: the loss
// of the best model that knows nothing of context.
double unigram_entropy(const data::Dataset& set, int64_t first, int64_t count, int64_t seq_length);

}  // namespace megatron::training
