#include "kernels/cuda_scratch/table.h"

#include "kernels/cuda_scratch/attention.h"
#include "kernels/cuda_scratch/gemm.h"
#include "kernels/cuda_scratch/library_attention.h"
#include "kernels/cuda_scratch/scratch.h"
#include "kernels/cuda_scratch/state_scan.h"

namespace megatron::kernels {
namespace {

template <auto scratch, class Args>
void ask(const Args& args, Stream& stream) {
  scratch(args, stream);
}

template <NormKind kind>
void ask_norm(const AddNormBackwardArgs& args, Stream& stream) {
  cuda::norm_backward_scratch(args, kind, stream);
}

void ask_attention(const AttentionArgs& args, Stream& stream) {
  cuda::ask_library_scratch(args, stream);
  cuda::attention_scratch(args, stream);
}

void ask_attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  cuda::ask_library_scratch(args, stream);
  cuda::attention_backward_scratch(args, stream);
}

}  // namespace

const Table& cuda_scratch_table() {
  static const Table table = {
      .gemm = ask<cuda::gemm_scratch, GemmArgs>,
      .add_rms_norm_backward = ask_norm<NormKind::rms>,
      .add_layer_norm_backward = ask_norm<NormKind::layer>,
      .head_norm_backward = ask<cuda::head_norm_backward_scratch, HeadNormBackwardArgs>,
      .attention = ask_attention,
      .attention_backward = ask_attention_backward,
      .causal_conv_backward = ask<cuda::causal_conv_backward_scratch, CausalConvBackwardArgs>,
      .state_scan = ask<cuda::state_scan_scratch, StateScanArgs>,
      .state_scan_backward = ask<cuda::state_scan_backward_scratch, StateScanBackwardArgs>,
      .state_scan_continued = ask<cuda::state_scan_continued_scratch, StateScanContinuedArgs>,
      .state_carry = ask<cuda::state_carry_scratch, StateCarryArgs>,
      .gated_norm_backward = ask<cuda::gated_norm_backward_scratch, GatedNormBackwardArgs>,
      .embedding_backward = ask<cuda::embedding_backward_scratch, EmbeddingBackwardArgs>,
      .column_sum = ask<cuda::column_sum_scratch, ColumnSumArgs>,
      .sinkhorn = ask<cuda::sinkhorn_scratch, SinkhornArgs>,
      .expert_thresholds = ask<cuda::expert_thresholds_scratch, ExpertThresholdsArgs>,
      .router_sums = ask<cuda::router_sums_scratch, RouterSumsArgs>,
      .expert_rows = ask<cuda::expert_rows_scratch, ExpertRowsArgs>,
      .coded_gemm = ask<cuda::coded_gemm_scratch, CodedGemmArgs>,
  };
  return table;
}

}  // namespace megatron::kernels
