// Scratch memory of the host kernels. The kernels request it with these functions, and so do plans
// (cpu_scratch_table).
#pragma once

#include "device/stream.h"
#include "kernels/cpu/blocks.h"
#include "kernels/table.h"

namespace megatron::kernels::cpu {

// With f32 gradients, exponentials are kept there until they are scaled; otherwise each thread has
// a row of scratch.
Tensor cross_entropy_scratch(const CrossEntropyArgs& args, Stream& stream);
// Codes and scales of x as `quantize` stores them.
QuantizedBlocks encode_operand_scratch(const EncodeOperandArgs& args, Stream& stream);
// Values of the operands, in bf16.
struct CodedValues {
  Tensor a, b;
};
CodedValues coded_gemm_scratch(const CodedGemmArgs& args, Stream& stream);
Tensor column_sum_scratch(const ColumnSumArgs& args, Stream& stream);
Tensor embedding_backward_scratch(const EmbeddingBackwardArgs& args, Stream& stream);
// Holds K [T,E], then c [E], sums of blocks of rows [blocks,E] and r [T], in f64.
Tensor sinkhorn_scratch(const SinkhornArgs& args, Stream& stream);
// Holds s - alpha, [E,T], in the type of the logits.
Tensor expert_thresholds_scratch(const ExpertThresholdsArgs& args, Stream& stream);
Tensor expert_rows_scratch(const ExpertRowsArgs& args, Stream& stream);
Tensor router_sums_scratch(const RouterSumsArgs& args, Stream& stream);

// Partial sums of blocks of rows.
struct NormPartials {
  Tensor dweights, dbiases;  // dbiases: undefined without a bias
};
NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream);
NormPartials head_norm_backward_scratch(const HeadNormBackwardArgs& args, Stream& stream);
// Undefined if the sums are not computed.
Tensor gated_norm_backward_scratch(const GatedNormBackwardArgs& args, Stream& stream);

// Partial sums of blocks of tokens, [blocks, C K] and [blocks, C]; undefined if they are not
// computed.
struct ConvPartials {
  Tensor dweights, dbiases;
};
RowBlocks causal_conv_blocks(const CausalConvBackwardArgs& args);
ConvPartials causal_conv_backward_scratch(const CausalConvBackwardArgs& args, Stream& stream);

}  // namespace megatron::kernels::cpu
