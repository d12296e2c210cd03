// Scratch memory of CUDA's kernels other than products and attention. The kernels request it with
// these functions, and so does meta when a run is planned for CUDA.
#pragma once

#include "device/stream.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {

// Weight gradients are summed over at most 528 blocks of at least 8 rows.
struct NormBlocks {
  explicit NormBlocks(int64_t rows);
  int64_t rows, height, count;
};

// Each block's sums, [blocks, H] f32.
struct NormPartials {
  Tensor dweights, dbiases;  // dbiases: undefined if there is no bias
};
NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream);
// Partial sums of blocks of tokens, [blocks, W] f32; undefined if none are formed.
NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream);
// Each block's sums, [blocks, W] f32; undefined if they are not computed.
Tensor gated_norm_backward_scratch(const GatedNormBackwardArgs& args, Stream& stream);

// Weight gradients of a convolution are summed over at most 64 blocks of at least 16 tokens, since
// there are channels to divide, too.
struct ConvBlocks {
  explicit ConvBlocks(int64_t tokens);
  int64_t tokens, height, count;
};

// Each block's sums, [blocks, C K] and [blocks, C] f32; undefined if they are not computed.
struct ConvPartials {
  Tensor dweights, dbiases;
};
ConvPartials causal_conv_backward_scratch(const CausalConvBackwardArgs& args, Stream& stream);

// Number of rows of x that are summed as one block: at least 64, and enough to make at most 128
// blocks.
int64_t column_sum_height(int64_t rows);
// [blocks, N] f32: sums of the blocks. Undefined, and not requested, if there is only one block.
Tensor column_sum_scratch(const ColumnSumArgs& args, Stream& stream);

// i32 words of the lists of tokens by row: a count and an end for each of V rows, two totals, T
// tokens, and up to min(V, T) rows that occur.
Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream);

// The tokens of a segment are summed in at most 256 blocks of at least 32 tokens.
struct RouterBlocks {
  explicit RouterBlocks(const RouterSumsArgs& args);
  int64_t segments, tokens;  // of a segment
  int64_t height, count;     // of a segment
};

// Each block's sums of p, counts, squares and entropy: [S, blocks, 2 E + 2], in the type of the
// logits.
Tensor router_sums_scratch(const RouterSumsArgs& args, Stream& stream);

// K [T,E], then c [E] and r [T], f64.
Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream);
// s - alpha, [E,T] of the type of logits.
Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream);

// Slots are counted in blocks of 512, which end with their segment.
struct SlotBlocks {
  explicit SlotBlocks(const ExpertRowsArgs& args);
  static constexpr int kHeight = 512;
  int64_t slots, experts, segments;
  int64_t of_segment;         // slots
  int64_t blocks_of_segment;  // of slots
  int64_t count;              // of all blocks
};

// All i32.
struct ExpertRowsScratch {
  Tensor counts;  // [blocks, G]
  Tensor starts;  // [S + 1, G]
  Tensor limits;  // [S]; only with a factor
  // The members below are defined only for KeptRows::largest.
  Tensor offsets;        // [G + 1]
  Tensor list, choices;  // [slots]
};
ExpertRowsScratch expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream);

}  // namespace megatron::kernels::cuda
