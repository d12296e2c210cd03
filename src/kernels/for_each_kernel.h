// for_each_kernel, which iterates over all kernels (observer.h, the table of meta).
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>

#include "kernels/table.h"

namespace megatron::kernels {

template <auto table_member>
struct Kernel {
  static constexpr auto member = table_member;
  std::string_view name;
};

#define MEGATRON_LIST(name, Args) std::tuple{Kernel<&Table::name>{#name}},
inline constexpr auto kKernels = std::tuple_cat(MEGATRON_KERNELS(MEGATRON_LIST) std::tuple{});
#undef MEGATRON_LIST

// Calls f with each Kernel, in order.
template <class F>
constexpr void for_each_kernel(F&& f) {
  std::apply([&f](const auto&... kernels) { (f(kernels), ...); }, kKernels);
}

// Checks a kernel call against the rules of its contract. Norms share an argument type.
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
