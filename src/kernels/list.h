// Lists every kernel once: X(name, type of its arguments). Expands to the table, the declarations
// and tables of the back-ends, and iteration over all kernels (for_each_kernel.h).
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "kernels/causal_conv.h"
#include "kernels/clip.h"
#include "kernels/coded_product.h"
#include "kernels/cross_entropy.h"
#include "kernels/draw.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/expert_balance.h"
#include "kernels/expert_rows.h"
#include "kernels/gate.h"
#include "kernels/gated_norm.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "kernels/head_norm.h"
#include "kernels/matrix_codes.h"
#include "kernels/noise.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/put_rows.h"
#include "kernels/quantize.h"
#include "kernels/rope.h"
#include "kernels/route.h"
#include "kernels/router_loss.h"
#include "kernels/sample.h"
#include "kernels/scale.h"
#include "kernels/soft_cap.h"
#include "kernels/squared_error.h"
#include "kernels/state_scan.h"
#include "kernels/tokens_of_rows.h"

// Kernels whose arguments have kElements (elements.h).
#define MEGATRON_ELEMENT_KERNELS(X)         \
  X(scale, ScaleArgs)                       \
  X(soft_cap, SoftCapArgs)                  \
  X(soft_cap_backward, SoftCapBackwardArgs) \
  X(clip, ClipArgs)                         \
  X(clip_backward, ClipBackwardArgs)        \
  X(gate, GateArgs)                         \
  X(gate_backward, GateBackwardArgs)        \
  X(squared_error, SquaredErrorArgs)

#define MEGATRON_KERNELS(X)                               \
  X(gemm, GemmArgs)                                       \
  X(add_rms_norm, AddNormArgs)                            \
  X(add_rms_norm_backward, AddNormBackwardArgs)           \
  X(add_layer_norm, AddNormArgs)                          \
  X(add_layer_norm_backward, AddNormBackwardArgs)         \
  X(activation, ActivationArgs)                           \
  X(activation_backward, ActivationBackwardArgs)          \
  X(head_norm, HeadNormArgs)                              \
  X(head_norm_backward, HeadNormBackwardArgs)             \
  X(row_dot, RowDotArgs)                                  \
  X(rope, RopeArgs)                                       \
  X(attention, AttentionArgs)                             \
  X(attention_backward, AttentionBackwardArgs)            \
  X(attention_merge, AttentionMergeArgs)                  \
  X(causal_conv, CausalConvArgs)                          \
  X(causal_conv_backward, CausalConvBackwardArgs)         \
  X(causal_conv_continued, CausalConvContinuedArgs)       \
  X(state_scan, StateScanArgs)                            \
  X(state_scan_backward, StateScanBackwardArgs)           \
  X(state_scan_continued, StateScanContinuedArgs)         \
  X(state_carry, StateCarryArgs)                          \
  X(gated_norm, GatedNormArgs)                            \
  X(gated_norm_backward, GatedNormBackwardArgs)           \
  X(embedding, EmbeddingArgs)                             \
  X(embedding_backward, EmbeddingBackwardArgs)            \
  X(cross_entropy, CrossEntropyArgs)                      \
  X(vocabulary_stats, VocabularyStatsArgs)                \
  X(vocabulary_cross_entropy, VocabularyCrossEntropyArgs) \
  X(draw, DrawArgs)                                       \
  X(dropout, DropoutArgs)                                 \
  X(add, AddArgs)                                         \
  X(copy, CopyArgs)                                       \
  X(put_rows, PutRowsArgs)                                \
  X(sample, SampleArgs)                                   \
  X(fill, FillArgs)                                       \
  X(column_sum, ColumnSumArgs)                            \
  X(sum, SumArgs)                                         \
  X(sum_of_squares, SumOfSquaresArgs)                     \
  X(grad_scale, GradScaleArgs)                            \
  X(adam, AdamArgs)                                       \
  X(sgd, SgdArgs)                                         \
  X(lion, LionArgs)                                       \
  X(muon_momentum, MuonMomentumArgs)                      \
  X(unit_norm, UnitNormArgs)                              \
  X(weighted_sum, WeightedSumArgs)                        \
  MEGATRON_ELEMENT_KERNELS(X)                             \
  X(route, RouteArgs)                                     \
  X(route_backward, RouteBackwardArgs)                    \
  X(expert_counts, ExpertCountsArgs)                      \
  X(expert_shares, ExpertSharesArgs)                      \
  X(expert_bias, ExpertBiasArgs)                          \
  X(jitter, JitterArgs)                                   \
  X(random_logits, RandomLogitsArgs)                      \
  X(sinkhorn, SinkhornArgs)                               \
  X(expert_thresholds, ExpertThresholdsArgs)              \
  X(threshold_bias, ThresholdBiasArgs)                    \
  X(router_sums, RouterSumsArgs)                          \
  X(router_loss_backward, RouterLossBackwardArgs)         \
  X(expert_rows, ExpertRowsArgs)                          \
  X(take_rows, TakeRowsArgs)                              \
  X(sum_rows, SumRowsArgs)                                \
  X(scale_rows, ScaleRowsArgs)                            \
  X(scale_rows_backward, ScaleRowsBackwardArgs)           \
  X(tokens_of_rows, TokensOfRowsArgs)                     \
  X(grouped_gemm, GroupedGemmArgs)                        \
  X(grouped_gradient, GroupedGradientArgs)                \
  X(amax, AmaxArgs)                                       \
  X(tensor_scale, TensorScaleArgs)                        \
  X(quantize, QuantizeArgs)                               \
  X(encode_operand, EncodeOperandArgs)                    \
  X(coded_gemm, CodedGemmArgs)                            \
  X(hadamard, HadamardArgs)                               \
  X(part_amax, PartAmaxArgs)                              \
  X(encode_part, EncodePartArgs)                          \
  X(decode_part, DecodePartArgs)
