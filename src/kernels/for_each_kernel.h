// Compile-time iteration over all kernels (for observer.h, widened.h and the table of meta).
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>

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

// The name of a table's entry.
template <class Args>
constexpr std::string_view name_of(void (*Table::*entry)(const Args&, Stream&)) {
  std::string_view name;
  for_each_kernel([&](const auto& kernel) {
    if constexpr (requires { kernel.member == entry; })
      if (kernel.member == entry) name = kernel.name;
  });
  return name;
}

// Checks a kernel call against the rules of its contract. Norms share their arguments.
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

// A table whose entries are Entry<member>::run. Entry needs a name of its own even in an anonymous
// namespace: GCC emits one function for all of the same name, and the linker keeps one of them.
template <template <auto> class Entry>
Table table_of() {
  Table table;
  for_each_kernel([&](const auto& kernel) {
    constexpr auto member = std::remove_cvref_t<decltype(kernel)>::member;
    table.*member = Entry<member>::run;
  });
  return table;
}

// Entry of a back-end's table: checks the arguments, then calls the kernel.
template <auto member, class Args, void (*kernel)(const Args&, Stream&)>
void checked(const Args& args, Stream& stream) {
  check_call<member>(args);
  kernel(args, stream);
}

}  // namespace megatron::kernels
