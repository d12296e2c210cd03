// The reference back-end's kernels; contracts in kernels/*.h. Each loads its inputs into dense rows
// of the compute type (double for f64, else float), computes with plain loops, and stores with one
// rounding; so outputs may alias inputs.
#pragma once

#include "device/stream.h"
#include "kernels/table.h"

namespace megatron::kernels::reference {

void gemm(const GemmArgs& args, Stream& stream);
void add_rms_norm(const AddNormArgs& args, Stream& stream);
void add_rms_norm_backward(const AddNormBackwardArgs& args, Stream& stream);
void add_layer_norm(const AddNormArgs& args, Stream& stream);
void add_layer_norm_backward(const AddNormBackwardArgs& args, Stream& stream);
void activation(const ActivationArgs& args, Stream& stream);
void activation_backward(const ActivationBackwardArgs& args, Stream& stream);
void head_norm(const HeadNormArgs& args, Stream& stream);
void head_norm_backward(const HeadNormBackwardArgs& args, Stream& stream);
void row_dot(const RowDotArgs& args, Stream& stream);
void rope(const RopeArgs& args, Stream& stream);
void attention(const AttentionArgs& args, Stream& stream);
void attention_backward(const AttentionBackwardArgs& args, Stream& stream);
void softmax(const SoftmaxArgs& args, Stream& stream);
void softmax_backward(const SoftmaxBackwardArgs& args, Stream& stream);
void embedding(const EmbeddingArgs& args, Stream& stream);
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream);
void cross_entropy(const CrossEntropyArgs& args, Stream& stream);
void vocabulary_stats(const VocabularyStatsArgs& args, Stream& stream);
void vocabulary_cross_entropy(const VocabularyCrossEntropyArgs& args, Stream& stream);
void draw(const DrawArgs& args, Stream& stream);
void dropout(const DropoutArgs& args, Stream& stream);
void add(const AddArgs& args, Stream& stream);
void copy(const CopyArgs& args, Stream& stream);
void fill(const FillArgs& args, Stream& stream);
void column_sum(const ColumnSumArgs& args, Stream& stream);
void sum(const SumArgs& args, Stream& stream);
void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream);
void grad_scale(const GradScaleArgs& args, Stream& stream);
void adam(const AdamArgs& args, Stream& stream);
void sgd(const SgdArgs& args, Stream& stream);
void lion(const LionArgs& args, Stream& stream);
void muon_momentum(const MuonMomentumArgs& args, Stream& stream);
void unit_norm(const UnitNormArgs& args, Stream& stream);
void weighted_sum(const WeightedSumArgs& args, Stream& stream);
void scale(const ScaleArgs& args, Stream& stream);
void soft_cap(const SoftCapArgs& args, Stream& stream);
void soft_cap_backward(const SoftCapBackwardArgs& args, Stream& stream);
void clip(const ClipArgs& args, Stream& stream);
void clip_backward(const ClipBackwardArgs& args, Stream& stream);
void put_rows(const PutRowsArgs& args, Stream& stream);
void sample(const SampleArgs& args, Stream& stream);
void gate(const GateArgs& args, Stream& stream);
void gate_backward(const GateBackwardArgs& args, Stream& stream);
void squared_error(const SquaredErrorArgs& args, Stream& stream);
void route(const RouteArgs& args, Stream& stream);
void route_backward(const RouteBackwardArgs& args, Stream& stream);
void expert_counts(const ExpertCountsArgs& args, Stream& stream);
void expert_shares(const ExpertSharesArgs& args, Stream& stream);
void expert_bias(const ExpertBiasArgs& args, Stream& stream);
void jitter(const JitterArgs& args, Stream& stream);
void random_logits(const RandomLogitsArgs& args, Stream& stream);
void sinkhorn(const SinkhornArgs& args, Stream& stream);
void expert_thresholds(const ExpertThresholdsArgs& args, Stream& stream);
void threshold_bias(const ThresholdBiasArgs& args, Stream& stream);
void router_sums(const RouterSumsArgs& args, Stream& stream);
void router_loss_backward(const RouterLossBackwardArgs& args, Stream& stream);
void expert_rows(const ExpertRowsArgs& args, Stream& stream);
void take_rows(const TakeRowsArgs& args, Stream& stream);
void sum_rows(const SumRowsArgs& args, Stream& stream);
void scale_rows(const ScaleRowsArgs& args, Stream& stream);
void scale_rows_backward(const ScaleRowsBackwardArgs& args, Stream& stream);
void grouped_gemm(const GroupedGemmArgs& args, Stream& stream);
void grouped_gradient(const GroupedGradientArgs& args, Stream& stream);

}  // namespace megatron::kernels::reference
