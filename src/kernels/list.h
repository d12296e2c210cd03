// Every kernel once: what goes through all of them (observer.h, own_kernels.h, the table of meta)
// reads this list.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>

#include "kernels/table.h"

namespace megatron::kernels {

// hot: a training step spends time in it, so that on a real device it must be the back-end's own.
template <auto table_member>
struct Kernel {
  static constexpr auto member = table_member;
  std::string_view name;
  bool hot = true;
};

inline constexpr std::tuple kKernels{
    Kernel<&Table::gemm>{"gemm"},
    Kernel<&Table::add_rms_norm>{"add_rms_norm"},
    Kernel<&Table::add_rms_norm_backward>{"add_rms_norm_backward"},
    Kernel<&Table::add_layer_norm>{"add_layer_norm"},
    Kernel<&Table::add_layer_norm_backward>{"add_layer_norm_backward"},
    Kernel<&Table::activation>{"activation"},
    Kernel<&Table::activation_backward>{"activation_backward"},
    Kernel<&Table::head_norm>{"head_norm"},
    Kernel<&Table::head_norm_backward>{"head_norm_backward"},
    Kernel<&Table::row_dot>{"row_dot"},
    Kernel<&Table::rope>{"rope"},
    Kernel<&Table::attention>{"attention"},
    Kernel<&Table::attention_backward>{"attention_backward"},
    Kernel<&Table::softmax>{"softmax", false},
    Kernel<&Table::softmax_backward>{"softmax_backward", false},
    Kernel<&Table::embedding>{"embedding"},
    Kernel<&Table::embedding_backward>{"embedding_backward"},
    Kernel<&Table::cross_entropy>{"cross_entropy"},
    Kernel<&Table::vocabulary_stats>{"vocabulary_stats"},
    Kernel<&Table::vocabulary_cross_entropy>{"vocabulary_cross_entropy"},
    Kernel<&Table::draw>{"draw", false},
    Kernel<&Table::dropout>{"dropout"},
    Kernel<&Table::add>{"add"},
    Kernel<&Table::copy>{"copy"},
    Kernel<&Table::put_rows>{"put_rows", false},
    Kernel<&Table::sample>{"sample", false},
    Kernel<&Table::fill>{"fill"},
    Kernel<&Table::column_sum>{"column_sum"},
    Kernel<&Table::sum>{"sum"},
    Kernel<&Table::sum_of_squares>{"sum_of_squares"},
    Kernel<&Table::grad_scale>{"grad_scale"},
    Kernel<&Table::adam>{"adam"},
    Kernel<&Table::sgd>{"sgd"},
    Kernel<&Table::lion>{"lion"},
    Kernel<&Table::muon_momentum>{"muon_momentum"},
    Kernel<&Table::unit_norm>{"unit_norm"},
    Kernel<&Table::weighted_sum>{"weighted_sum"},
    Kernel<&Table::scale>{"scale"},
    Kernel<&Table::soft_cap>{"soft_cap"},
    Kernel<&Table::soft_cap_backward>{"soft_cap_backward"},
    Kernel<&Table::clip>{"clip"},
    Kernel<&Table::clip_backward>{"clip_backward"},
    Kernel<&Table::gate>{"gate"},
    Kernel<&Table::gate_backward>{"gate_backward"},
    Kernel<&Table::squared_error>{"squared_error", false},
    Kernel<&Table::route>{"route"},
    Kernel<&Table::route_backward>{"route_backward"},
    Kernel<&Table::expert_counts>{"expert_counts", false},
    Kernel<&Table::expert_shares>{"expert_shares", false},
    Kernel<&Table::expert_bias>{"expert_bias", false},
    Kernel<&Table::jitter>{"jitter"},
    Kernel<&Table::random_logits>{"random_logits", false},
    Kernel<&Table::sinkhorn>{"sinkhorn"},
    Kernel<&Table::expert_thresholds>{"expert_thresholds"},
    Kernel<&Table::threshold_bias>{"threshold_bias", false},
    Kernel<&Table::router_sums>{"router_sums"},
    Kernel<&Table::router_loss_backward>{"router_loss_backward"},
    Kernel<&Table::expert_rows>{"expert_rows"},
    Kernel<&Table::take_rows>{"take_rows"},
    Kernel<&Table::sum_rows>{"sum_rows"},
    Kernel<&Table::scale_rows>{"scale_rows"},
    Kernel<&Table::scale_rows_backward>{"scale_rows_backward"},
    Kernel<&Table::grouped_gemm>{"grouped_gemm"},
    Kernel<&Table::grouped_gradient>{"grouped_gradient"},
};
static_assert(sizeof(Table) == std::tuple_size_v<decltype(kKernels)> * sizeof(void (*)()),
              "each member of Table stands in kKernels once");

// Calls f with each Kernel, in order.
template <class F>
constexpr void for_each_kernel(F&& f) {
  std::apply([&f](const auto&... kernels) { (f(kernels), ...); }, kKernels);
}

// Checks a call of a kernel by the rules of its contract. Norms share their arguments.
template <auto member, class Args>
void check_call(const Args& args) {
  if constexpr (requires { check(args); }) {
    check(args);
  } else if constexpr (requires { member == &Table::add_rms_norm; }) {
    check(args, member == &Table::add_rms_norm ? NormKind::rms : NormKind::layer);
  } else {
    check(args, member == &Table::add_rms_norm_backward ? NormKind::rms : NormKind::layer);
  }
}

}  // namespace megatron::kernels
