#include "kernels/cuda/table.h"

#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/clip.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/expert_balance.h"
#include "kernels/cuda/expert_rows.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "kernels/cuda/head_norm.h"
#include "kernels/cuda/noise.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/products/gemm.h"
#include "kernels/cuda/put_rows.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/scale.h"
#include "kernels/cuda/soft_cap.h"
#include "kernels/cuda/softmax.h"
#include "kernels/cuda/squared_error.h"

namespace megatron::kernels {

const Table& cuda_table() {
  static const Table table = {
      .gemm = cuda::gemm,
      .add_rms_norm = cuda::add_rms_norm,
      .add_rms_norm_backward = cuda::add_rms_norm_backward,
      .add_layer_norm = cuda::add_layer_norm,
      .add_layer_norm_backward = cuda::add_layer_norm_backward,
      .activation = cuda::activation,
      .activation_backward = cuda::activation_backward,
      .head_norm = cuda::head_norm,
      .head_norm_backward = cuda::head_norm_backward,
      .row_dot = cuda::row_dot,
      .rope = cuda::rope,
      .attention = cuda::attention,
      .attention_backward = cuda::attention_backward,
      .softmax = cuda::softmax,
      .softmax_backward = cuda::softmax_backward,
      .embedding = cuda::embedding,
      .embedding_backward = cuda::embedding_backward,
      .cross_entropy = cuda::cross_entropy,
      .vocabulary_stats = cuda::vocabulary_stats,
      .vocabulary_cross_entropy = cuda::vocabulary_cross_entropy,
      .draw = cuda::draw,
      .dropout = cuda::dropout,
      .add = cuda::add,
      .copy = cuda::copy,
      .put_rows = cuda::put_rows,
      .sample = cuda::sample,
      .fill = cuda::fill,
      .column_sum = cuda::column_sum,
      .sum = cuda::sum,
      .sum_of_squares = cuda::sum_of_squares,
      .grad_scale = cuda::grad_scale,
      .adam = cuda::adam,
      .sgd = cuda::sgd,
      .lion = cuda::lion,
      .muon_momentum = cuda::muon_momentum,
      .unit_norm = cuda::unit_norm,
      .weighted_sum = cuda::weighted_sum,
      .scale = cuda::scale,
      .soft_cap = cuda::soft_cap,
      .soft_cap_backward = cuda::soft_cap_backward,
      .clip = cuda::clip,
      .clip_backward = cuda::clip_backward,
      .gate = cuda::gate,
      .gate_backward = cuda::gate_backward,
      .squared_error = cuda::squared_error,
      .route = cuda::route,
      .route_backward = cuda::route_backward,
      .expert_counts = cuda::expert_counts,
      .expert_shares = cuda::expert_shares,
      .expert_bias = cuda::expert_bias,
      .jitter = cuda::jitter,
      .random_logits = cuda::random_logits,
      .sinkhorn = cuda::sinkhorn,
      .expert_thresholds = cuda::expert_thresholds,
      .threshold_bias = cuda::threshold_bias,
      .router_sums = cuda::router_sums,
      .router_loss_backward = cuda::router_loss_backward,
      .expert_rows = cuda::expert_rows,
      .take_rows = cuda::take_rows,
      .sum_rows = cuda::sum_rows,
      .scale_rows = cuda::scale_rows,
      .scale_rows_backward = cuda::scale_rows_backward,
      .grouped_gemm = cuda::grouped_gemm,
      .grouped_gradient = cuda::grouped_gradient,
  };
  return table;
}

}  // namespace megatron::kernels

extern "C" __attribute__((visibility("default"))) const megatron::kernels::Table*
megatron_cuda_kernels() {
  return &megatron::kernels::cuda_table();
}
