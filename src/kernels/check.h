// Shape and type rules of the kernels' contracts, shared by every back-end. A broken rule is a
// defect of the caller: throws InternalError naming the kernel, the rule and the shapes. Data is
// never read.
#pragma once

#include "kernels/table.h"

namespace megatron::kernels {

enum class NormKind { rms, layer };

void check(const GemmArgs& args);
void check(const AddNormArgs& args, NormKind kind);
void check(const AddNormBackwardArgs& args, NormKind kind);
void check(const ActivationArgs& args);
void check(const ActivationBackwardArgs& args);
void check(const RopeArgs& args);
void check(const AttentionArgs& args);
void check(const AttentionBackwardArgs& args);
void check(const SoftmaxArgs& args);
void check(const SoftmaxBackwardArgs& args);
void check(const EmbeddingArgs& args);
void check(const EmbeddingBackwardArgs& args);
void check(const CrossEntropyArgs& args);
void check(const VocabularyStatsArgs& args);
void check(const VocabularyCrossEntropyArgs& args);
void check(const DrawArgs& args);
void check(const DropoutArgs& args);
void check(const AddArgs& args);
void check(const CopyArgs& args);
void check(const FillArgs& args);
void check(const ColumnSumArgs& args);
void check(const SumArgs& args);
void check(const SumOfSquaresArgs& args);
void check(const GradScaleArgs& args);
void check(const AdamArgs& args);
void check(const SgdArgs& args);
void check(const LionArgs& args);
void check(const MuonMomentumArgs& args);
void check(const UnitNormArgs& args);
void check(const WeightedSumArgs& args);

}  // namespace megatron::kernels
