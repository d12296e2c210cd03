// The list of all kernels: X(name, type of its arguments, heat). It generates the table, the
// iteration over its entries (for_each_kernel.h) and the declarations and tables of the back-ends.
// hot: a training step spends time in it, so a real device must have its own implementation.
#pragma once

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

// Those of elements.h.
#define MEGATRON_ELEMENT_KERNELS(X)              \
  X(scale, ScaleArgs, hot)                       \
  X(soft_cap, SoftCapArgs, hot)                  \
  X(soft_cap_backward, SoftCapBackwardArgs, hot) \
  X(clip, ClipArgs, hot)                         \
  X(clip_backward, ClipBackwardArgs, hot)        \
  X(gate, GateArgs, hot)                         \
  X(gate_backward, GateBackwardArgs, hot)        \
  X(squared_error, SquaredErrorArgs, cold)

#define MEGATRON_KERNELS(X)                                    \
  X(gemm, GemmArgs, hot)                                       \
  X(add_rms_norm, AddNormArgs, hot)                            \
  X(add_rms_norm_backward, AddNormBackwardArgs, hot)           \
  X(add_layer_norm, AddNormArgs, hot)                          \
  X(add_layer_norm_backward, AddNormBackwardArgs, hot)         \
  X(activation, ActivationArgs, hot)                           \
  X(activation_backward, ActivationBackwardArgs, hot)          \
  X(head_norm, HeadNormArgs, hot)                              \
  X(head_norm_backward, HeadNormBackwardArgs, hot)             \
  X(row_dot, RowDotArgs, hot)                                  \
  X(rope, RopeArgs, hot)                                       \
  X(attention, AttentionArgs, hot)                             \
  X(attention_backward, AttentionBackwardArgs, hot)            \
  X(embedding, EmbeddingArgs, hot)                             \
  X(embedding_backward, EmbeddingBackwardArgs, hot)            \
  X(cross_entropy, CrossEntropyArgs, hot)                      \
  X(vocabulary_stats, VocabularyStatsArgs, hot)                \
  X(vocabulary_cross_entropy, VocabularyCrossEntropyArgs, hot) \
  X(draw, DrawArgs, cold)                                      \
  X(dropout, DropoutArgs, hot)                                 \
  X(add, AddArgs, hot)                                         \
  X(copy, CopyArgs, hot)                                       \
  X(put_rows, PutRowsArgs, cold)                               \
  X(sample, SampleArgs, cold)                                  \
  X(fill, FillArgs, hot)                                       \
  X(column_sum, ColumnSumArgs, hot)                            \
  X(sum, SumArgs, hot)                                         \
  X(sum_of_squares, SumOfSquaresArgs, hot)                     \
  X(grad_scale, GradScaleArgs, hot)                            \
  X(adam, AdamArgs, hot)                                       \
  X(sgd, SgdArgs, hot)                                         \
  X(lion, LionArgs, hot)                                       \
  X(muon_momentum, MuonMomentumArgs, hot)                      \
  X(unit_norm, UnitNormArgs, hot)                              \
  X(weighted_sum, WeightedSumArgs, hot)                        \
  MEGATRON_ELEMENT_KERNELS(X)                                  \
  X(route, RouteArgs, hot)                                     \
  X(route_backward, RouteBackwardArgs, hot)                    \
  X(expert_counts, ExpertCountsArgs, cold)                     \
  X(expert_shares, ExpertSharesArgs, cold)                     \
  X(expert_bias, ExpertBiasArgs, cold)                         \
  X(jitter, JitterArgs, hot)                                   \
  X(random_logits, RandomLogitsArgs, cold)                     \
  X(sinkhorn, SinkhornArgs, hot)                               \
  X(expert_thresholds, ExpertThresholdsArgs, hot)              \
  X(threshold_bias, ThresholdBiasArgs, cold)                   \
  X(router_sums, RouterSumsArgs, hot)                          \
  X(router_loss_backward, RouterLossBackwardArgs, hot)         \
  X(expert_rows, ExpertRowsArgs, hot)                          \
  X(take_rows, TakeRowsArgs, hot)                              \
  X(sum_rows, SumRowsArgs, hot)                                \
  X(scale_rows, ScaleRowsArgs, hot)                            \
  X(scale_rows_backward, ScaleRowsBackwardArgs, hot)           \
  X(grouped_gemm, GroupedGemmArgs, hot)                        \
  X(grouped_gradient, GroupedGradientArgs, hot)
