// The host's cross entropy; contract in kernels/cross_entropy.h.
#pragma once

#include "device/stream.h"
#include "kernels/cross_entropy.h"

namespace megatron::kernels::cpu {

void cross_entropy(const CrossEntropyArgs& args, Stream& stream);
void vocabulary_stats(const VocabularyStatsArgs& args, Stream& stream);
void vocabulary_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream);
// What a call of cross_entropy takes of the scratch arena: f32 gradients hold the exponentials
// until they are scaled, others have a row of each thread.
Tensor cross_entropy_scratch(const CrossEntropyArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
