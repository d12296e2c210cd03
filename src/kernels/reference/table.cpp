#include "kernels/reference/table.h"

#include "kernels/reference/kernels.h"

namespace megatron::kernels {

const Table& reference_table() {
  static const Table table = {
      .gemm = reference::gemm,
      .add_rms_norm = reference::add_rms_norm,
      .add_rms_norm_backward = reference::add_rms_norm_backward,
      .add_layer_norm = reference::add_layer_norm,
      .add_layer_norm_backward = reference::add_layer_norm_backward,
      .activation = reference::activation,
      .activation_backward = reference::activation_backward,
      .head_norm = reference::head_norm,
      .head_norm_backward = reference::head_norm_backward,
      .row_dot = reference::row_dot,
      .rope = reference::rope,
      .attention = reference::attention,
      .attention_backward = reference::attention_backward,
      .softmax = reference::softmax,
      .softmax_backward = reference::softmax_backward,
      .embedding = reference::embedding,
      .embedding_backward = reference::embedding_backward,
      .cross_entropy = reference::cross_entropy,
      .vocabulary_stats = reference::vocabulary_stats,
      .vocabulary_cross_entropy = reference::vocabulary_cross_entropy,
      .draw = reference::draw,
      .dropout = reference::dropout,
      .add = reference::add,
      .copy = reference::copy,
      .put_rows = reference::put_rows,
      .sample = reference::sample,
      .fill = reference::fill,
      .column_sum = reference::column_sum,
      .sum = reference::sum,
      .sum_of_squares = reference::sum_of_squares,
      .grad_scale = reference::grad_scale,
      .adam = reference::adam,
      .sgd = reference::sgd,
      .lion = reference::lion,
      .muon_momentum = reference::muon_momentum,
      .unit_norm = reference::unit_norm,
      .weighted_sum = reference::weighted_sum,
      .scale = reference::scale,
      .soft_cap = reference::soft_cap,
      .soft_cap_backward = reference::soft_cap_backward,
      .clip = reference::clip,
      .clip_backward = reference::clip_backward,
      .gate = reference::gate,
      .gate_backward = reference::gate_backward,
      .squared_error = reference::squared_error,
      .route = reference::route,
      .route_backward = reference::route_backward,
      .router_sums = reference::router_sums,
      .router_loss_backward = reference::router_loss_backward,
      .expert_rows = reference::expert_rows,
      .take_rows = reference::take_rows,
      .sum_rows = reference::sum_rows,
      .scale_rows = reference::scale_rows,
      .scale_rows_backward = reference::scale_rows_backward,
      .grouped_gemm = reference::grouped_gemm,
      .grouped_gradient = reference::grouped_gradient,
  };
  return table;
}

}  // namespace megatron::kernels
