// CUDA's cross entropy; contracts in kernels/cross_entropy.h. A label outside of the vocabulary,
// where the contract leaves it open, gives loss NaN.
#pragma once

#include "device/stream.h"
#include "kernels/cross_entropy.h"

namespace megatron::kernels::cuda {

void cross_entropy(const CrossEntropyArgs& args, Stream& stream);
void vocabulary_stats(const VocabularyStatsArgs& args, Stream& stream);
void vocabulary_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
