#include "kernels/cpu/table.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/clip.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/draw.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/expert_balance.h"
#include "kernels/cpu/expert_rows.h"
#include "kernels/cpu/gate.h"
#include "kernels/cpu/head_norm.h"
#include "kernels/cpu/noise.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/grouped_gemm.h"
#include "kernels/cpu/put_rows.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/soft_cap.h"
#include "kernels/cpu/squared_error.h"
#include "kernels/cpu/token_rows.h"

namespace megatron::kernels {

const Table& cpu_table() {
  static const Table table = {
      .gemm = cpu::gemm,
      .add_rms_norm = cpu::add_rms_norm,
      .add_rms_norm_backward = cpu::add_rms_norm_backward,
      .add_layer_norm = cpu::add_layer_norm,
      .add_layer_norm_backward = cpu::add_layer_norm_backward,
      .activation = cpu::activation,
      .activation_backward = cpu::activation_backward,
      .head_norm = cpu::head_norm,
      .head_norm_backward = cpu::head_norm_backward,
      .row_dot = cpu::row_dot,
      .rope = cpu::rope,
      .attention = cpu::attention,
      .attention_backward = cpu::attention_backward,
      .softmax = cpu::softmax,
      .softmax_backward = cpu::softmax_backward,
      .embedding = cpu::embedding,
      .embedding_backward = cpu::embedding_backward,
      .cross_entropy = cpu::cross_entropy,
      .vocabulary_stats = cpu::vocabulary_stats,
      .vocabulary_cross_entropy = cpu::vocabulary_cross_entropy,
      .draw = cpu::draw,
      .dropout = cpu::dropout,
      .add = cpu::add,
      .copy = cpu::copy,
      .put_rows = cpu::put_rows,
      .sample = cpu::sample,
      .fill = cpu::fill,
      .column_sum = cpu::column_sum,
      .sum = cpu::sum,
      .sum_of_squares = cpu::sum_of_squares,
      .grad_scale = cpu::grad_scale,
      .adam = cpu::adam,
      .sgd = cpu::sgd,
      .lion = cpu::lion,
      .muon_momentum = cpu::muon_momentum,
      .unit_norm = cpu::unit_norm,
      .weighted_sum = cpu::weighted_sum,
      .scale = cpu::scale,
      .soft_cap = cpu::soft_cap,
      .soft_cap_backward = cpu::soft_cap_backward,
      .clip = cpu::clip,
      .clip_backward = cpu::clip_backward,
      .gate = cpu::gate,
      .gate_backward = cpu::gate_backward,
      .squared_error = cpu::squared_error,
      .route = cpu::route,
      .route_backward = cpu::route_backward,
      .expert_counts = cpu::expert_counts,
      .expert_shares = cpu::expert_shares,
      .expert_bias = cpu::expert_bias,
      .jitter = cpu::jitter,
      .random_logits = cpu::random_logits,
      .sinkhorn = cpu::sinkhorn,
      .expert_thresholds = cpu::expert_thresholds,
      .threshold_bias = cpu::threshold_bias,
      .router_sums = cpu::router_sums,
      .router_loss_backward = cpu::router_loss_backward,
      .expert_rows = cpu::expert_rows,
      .take_rows = cpu::take_rows,
      .sum_rows = cpu::sum_rows,
      .scale_rows = cpu::scale_rows,
      .scale_rows_backward = cpu::scale_rows_backward,
      .grouped_gemm = cpu::grouped_gemm,
      .grouped_gradient = cpu::grouped_gradient,
  };
  return table;
}

}  // namespace megatron::kernels
