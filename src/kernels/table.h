// The kernel table: one function pointer a kernel, filled by each back-end with designated
// initialisers. A null entry means that the op's composed definition is used; the comment of such
// an entry says `composed:` and which one. tools/check_coverage refuses any other null.
#pragma once

#include <span>
#include <string_view>

#include "device/stream.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/clip.h"
#include "kernels/cross_entropy.h"
#include "kernels/draw.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/expert_balance.h"
#include "kernels/expert_rows.h"
#include "kernels/gate.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "kernels/head_norm.h"
#include "kernels/noise.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/put_rows.h"
#include "kernels/rope.h"
#include "kernels/route.h"
#include "kernels/router_loss.h"
#include "kernels/sample.h"
#include "kernels/scale.h"
#include "kernels/soft_cap.h"
#include "kernels/squared_error.h"

namespace megatron::kernels {

struct Table {
  void (*gemm)(const GemmArgs&, Stream&) = nullptr;
  void (*add_rms_norm)(const AddNormArgs&, Stream&) = nullptr;
  void (*add_rms_norm_backward)(const AddNormBackwardArgs&, Stream&) = nullptr;
  void (*add_layer_norm)(const AddNormArgs&, Stream&) = nullptr;
  void (*add_layer_norm_backward)(const AddNormBackwardArgs&, Stream&) = nullptr;
  void (*activation)(const ActivationArgs&, Stream&) = nullptr;
  void (*activation_backward)(const ActivationBackwardArgs&, Stream&) = nullptr;
  void (*head_norm)(const HeadNormArgs&, Stream&) = nullptr;
  void (*head_norm_backward)(const HeadNormBackwardArgs&, Stream&) = nullptr;
  void (*row_dot)(const RowDotArgs&, Stream&) = nullptr;
  void (*rope)(const RopeArgs&, Stream&) = nullptr;
  void (*attention)(const AttentionArgs&, Stream&) = nullptr;
  void (*attention_backward)(const AttentionBackwardArgs&, Stream&) = nullptr;
  void (*softmax)(const SoftmaxArgs&, Stream&) = nullptr;
  void (*softmax_backward)(const SoftmaxBackwardArgs&, Stream&) = nullptr;
  void (*embedding)(const EmbeddingArgs&, Stream&) = nullptr;
  void (*embedding_backward)(const EmbeddingBackwardArgs&, Stream&) = nullptr;
  void (*cross_entropy)(const CrossEntropyArgs&, Stream&) = nullptr;
  void (*vocabulary_stats)(const VocabularyStatsArgs&, Stream&) = nullptr;
  void (*vocabulary_cross_entropy)(const VocabularyCrossEntropyArgs&, Stream&) = nullptr;
  void (*draw)(const DrawArgs&, Stream&) = nullptr;
  void (*dropout)(const DropoutArgs&, Stream&) = nullptr;
  void (*add)(const AddArgs&, Stream&) = nullptr;
  void (*copy)(const CopyArgs&, Stream&) = nullptr;
  void (*put_rows)(const PutRowsArgs&, Stream&) = nullptr;
  void (*sample)(const SampleArgs&, Stream&) = nullptr;
  void (*fill)(const FillArgs&, Stream&) = nullptr;
  void (*column_sum)(const ColumnSumArgs&, Stream&) = nullptr;
  void (*sum)(const SumArgs&, Stream&) = nullptr;
  void (*sum_of_squares)(const SumOfSquaresArgs&, Stream&) = nullptr;
  void (*grad_scale)(const GradScaleArgs&, Stream&) = nullptr;
  void (*adam)(const AdamArgs&, Stream&) = nullptr;
  void (*sgd)(const SgdArgs&, Stream&) = nullptr;
  void (*lion)(const LionArgs&, Stream&) = nullptr;
  void (*muon_momentum)(const MuonMomentumArgs&, Stream&) = nullptr;
  void (*unit_norm)(const UnitNormArgs&, Stream&) = nullptr;
  void (*weighted_sum)(const WeightedSumArgs&, Stream&) = nullptr;
  void (*scale)(const ScaleArgs&, Stream&) = nullptr;
  void (*soft_cap)(const SoftCapArgs&, Stream&) = nullptr;
  void (*soft_cap_backward)(const SoftCapBackwardArgs&, Stream&) = nullptr;
  void (*clip)(const ClipArgs&, Stream&) = nullptr;
  void (*clip_backward)(const ClipBackwardArgs&, Stream&) = nullptr;
  void (*gate)(const GateArgs&, Stream&) = nullptr;
  void (*gate_backward)(const GateBackwardArgs&, Stream&) = nullptr;
  void (*squared_error)(const SquaredErrorArgs&, Stream&) = nullptr;
  void (*route)(const RouteArgs&, Stream&) = nullptr;
  void (*route_backward)(const RouteBackwardArgs&, Stream&) = nullptr;
  void (*expert_counts)(const ExpertCountsArgs&, Stream&) = nullptr;
  void (*expert_shares)(const ExpertSharesArgs&, Stream&) = nullptr;
  void (*expert_bias)(const ExpertBiasArgs&, Stream&) = nullptr;
  void (*jitter)(const JitterArgs&, Stream&) = nullptr;
  void (*random_logits)(const RandomLogitsArgs&, Stream&) = nullptr;
  void (*sinkhorn)(const SinkhornArgs&, Stream&) = nullptr;
  void (*expert_thresholds)(const ExpertThresholdsArgs&, Stream&) = nullptr;
  void (*threshold_bias)(const ThresholdBiasArgs&, Stream&) = nullptr;
  void (*router_sums)(const RouterSumsArgs&, Stream&) = nullptr;
  void (*router_loss_backward)(const RouterLossBackwardArgs&, Stream&) = nullptr;
  void (*expert_rows)(const ExpertRowsArgs&, Stream&) = nullptr;
  void (*take_rows)(const TakeRowsArgs&, Stream&) = nullptr;
  void (*sum_rows)(const SumRowsArgs&, Stream&) = nullptr;
  void (*scale_rows)(const ScaleRowsArgs&, Stream&) = nullptr;
  void (*scale_rows_backward)(const ScaleRowsBackwardArgs&, Stream&) = nullptr;
  void (*grouped_gemm)(const GroupedGemmArgs&, Stream&) = nullptr;
  void (*grouped_gradient)(const GroupedGradientArgs&, Stream&) = nullptr;
};

// Throws Error for a back-end that this build does not have.
const Table& table(DeviceKind kind);
// What a user should know of matrix products in this type here; empty when there is nothing to say.
std::string_view remark_on_products(DeviceKind kind, DType type);
// That of the stream's device; where an observer watches the stream, one that calls it (observer.h).
const Table& table(Stream& stream);

// The type that sums and statistics are kept in.
inline DType accumulator(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace megatron::kernels
