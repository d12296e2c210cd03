#include "kernels/meta/table.h"

#include "kernels/check.h"

namespace megatron::kernels {
namespace {

template <class Args>
void check_only(const Args& args, Stream&) {
  check(args);
}

template <class Args, NormKind kind>
void check_norm(const Args& args, Stream&) {
  check(args, kind);
}

}  // namespace

const Table& meta_table() {
  static const Table table = {
      .gemm = check_only<GemmArgs>,
      .add_rms_norm = check_norm<AddNormArgs, NormKind::rms>,
      .add_rms_norm_backward = check_norm<AddNormBackwardArgs, NormKind::rms>,
      .add_layer_norm = check_norm<AddNormArgs, NormKind::layer>,
      .add_layer_norm_backward = check_norm<AddNormBackwardArgs, NormKind::layer>,
      .activation = check_only<ActivationArgs>,
      .activation_backward = check_only<ActivationBackwardArgs>,
      .rope = check_only<RopeArgs>,
      .attention = check_only<AttentionArgs>,
      .attention_backward = check_only<AttentionBackwardArgs>,
      .softmax = check_only<SoftmaxArgs>,
      .softmax_backward = check_only<SoftmaxBackwardArgs>,
      .embedding = check_only<EmbeddingArgs>,
      .embedding_backward = check_only<EmbeddingBackwardArgs>,
      .cross_entropy = check_only<CrossEntropyArgs>,
      .dropout = check_only<DropoutArgs>,
      .add = check_only<AddArgs>,
      .copy = check_only<CopyArgs>,
      .fill = check_only<FillArgs>,
      .column_sum = check_only<ColumnSumArgs>,
      .sum = check_only<SumArgs>,
      .sum_of_squares = check_only<SumOfSquaresArgs>,
      .grad_scale = check_only<GradScaleArgs>,
      .adam = check_only<AdamArgs>,
      .sgd = check_only<SgdArgs>,
  };
  return table;
}

}  // namespace megatron::kernels
