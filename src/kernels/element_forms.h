// Compile-time properties of calls that the loops of element-wise kernels need.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/elements.h"

namespace megatron::kernels {

// Form of a kernel's arguments, whose tensors have type T unless they are wide.
template <class Type, class Args>
struct FormOf {
  using T = Type;
  static constexpr size_t kInputs = Args::kElements.inputs(), kOutputs = Args::kElements.outputs();
  template <size_t operand>
  static constexpr bool kWide = Args::kElements.list[operand].is_wide;
  template <size_t operand>
  static constexpr bool kOptional = Args::kElements.list[operand].is_optional;
};
// Form of `inputs` inputs and `outputs` outputs of type T, none wide and none optional.
template <class Type, size_t inputs, size_t outputs>
struct PlainForm {
  using T = Type;
  static constexpr size_t kInputs = inputs, kOutputs = outputs;
  template <size_t operand>
  static constexpr bool kWide = false;
  template <size_t operand>
  static constexpr bool kOptional = false;
};
template <class Form, size_t operand>
using Stored = std::conditional_t<Form::template kWide<operand>, float, typename Form::T>;

}  // namespace megatron::kernels
