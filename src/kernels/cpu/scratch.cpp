// Scratch memory of the host kernels: a table whose entries request from the arena what a call of
// the kernel uses, in the same order and through the functions that the kernels themselves call.
#include "kernels/cpu/scratch.h"

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/state_scan/scan.h"
#include "kernels/cpu/table.h"

namespace megatron::kernels {
namespace {

template <auto scratch, class Args>
void ask(const Args& args, Stream& stream) {
  scratch(args, stream);
}

template <NormKind kind>
void ask_norm(const AddNormBackwardArgs& args, Stream& stream) {
  cpu::norm_backward_scratch(args, kind, stream);
}

void ask_bias_gradient(const GemmArgs& args, Stream& stream) {
  if (args.bias_gradient.out.defined())
    cpu::column_sum_scratch({.x = args.a, .out = args.bias_gradient}, stream);
}

void ask_encode_operand(const EncodeOperandArgs& args, Stream& stream) {
  if (args.transpose_out.codes.defined()) cpu::encode_operand_scratch(for_transpose(args), stream);
  cpu::encode_operand_scratch(args, stream);
}

}  // namespace

const Table& cpu_scratch_table() {
  static const Table table = {
      .gemm = ask_bias_gradient,
      .add_rms_norm_backward = ask_norm<NormKind::rms>,
      .add_layer_norm_backward = ask_norm<NormKind::layer>,
      .head_norm_backward = ask<cpu::head_norm_backward_scratch, HeadNormBackwardArgs>,
      .attention = ask<cpu::attention_scratch, AttentionArgs>,
      .attention_backward = ask<cpu::attention_backward_scratch, AttentionBackwardArgs>,
      .causal_conv_backward = ask<cpu::causal_conv_backward_scratch, CausalConvBackwardArgs>,
      .state_scan = ask<cpu::state_scan_scratch, StateScanArgs>,
      .state_scan_backward = ask<cpu::state_scan_backward_scratch, StateScanBackwardArgs>,
      .state_scan_continued = ask<cpu::state_scan_continued_scratch, StateScanContinuedArgs>,
      .state_carry = ask<cpu::state_carry_scratch, StateCarryArgs>,
      .gated_norm_backward = ask<cpu::gated_norm_backward_scratch, GatedNormBackwardArgs>,
      .embedding_backward = ask<cpu::embedding_backward_scratch, EmbeddingBackwardArgs>,
      .cross_entropy = ask<cpu::cross_entropy_scratch, CrossEntropyArgs>,
      .column_sum = ask<cpu::column_sum_scratch, ColumnSumArgs>,
      .sinkhorn = ask<cpu::sinkhorn_scratch, SinkhornArgs>,
      .expert_thresholds = ask<cpu::expert_thresholds_scratch, ExpertThresholdsArgs>,
      .router_sums = ask<cpu::router_sums_scratch, RouterSumsArgs>,
      .expert_rows = ask<cpu::expert_rows_scratch, ExpertRowsArgs>,
      .encode_operand = ask_encode_operand,
      .coded_gemm = ask<cpu::coded_gemm_scratch, CodedGemmArgs>,
  };
  return table;
}

}  // namespace megatron::kernels
