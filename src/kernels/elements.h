// Element-wise kernels. Each is defined by its arguments (a struct with kElements, below) and its
// formula (formulas-inl.h). visit(), check(), the loops of every back-end and the Cases are
// generated from these.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/access.h"

namespace megatron::kernels {

template <class Args>
using TensorOf = Tensor Args::*;

// One tensor of a call.
template <class Args>
struct Element {
  const char* name;
  TensorOf<Args> tensor;
  Access access = Access::read;
  TensorOf<Args> may_be = nullptr;  // input that this output may alias
  bool is_wide = false;             // f32 (f64 for f64) instead of the type of the others
  bool is_optional = false;         // an output that may be undefined: not computed

  constexpr Element wide() const {
    Element e = *this;
    e.is_wide = true;
    return e;
  }
  constexpr Element optional() const {
    Element e = *this;
    e.is_optional = true;
    return e;
  }
};

template <class Args>
constexpr Element<Args> input(const char* name, TensorOf<Args> tensor) {
  return {name, tensor};
}
template <class Args>
constexpr Element<Args> output(const char* name, TensorOf<Args> tensor,
                               TensorOf<Args> may_be = nullptr) {
  return {name, tensor, Access::write, may_be};
}

// Contiguous, of any shape; or [T,N], the last dim contiguous, rows at any stride.
enum class ElementLayout { contiguous, rows };

// The tensors of a kernel, inputs first, in the order of its formula's arguments and results. All
// have one shape and layout, and one floating type, except wide ones.
template <class Args, size_t kCount>
struct Elements {
  const char* kernel;
  ElementLayout layout;
  std::array<Element<Args>, kCount> list;

  constexpr size_t inputs() const {
    size_t count = 0;
    while (count < kCount && list[count].access == Access::read) ++count;
    return count;
  }
  constexpr size_t outputs() const { return kCount - inputs(); }
  // The first tensor that is not wide; its type is the call's.
  constexpr size_t of_type() const {
    size_t first = 0;
    while (list[first].is_wide) ++first;
    return first;
  }
};

template <class Args, class... Others>
constexpr auto elements(const char* kernel, ElementLayout layout, Element<Args> first,
                        Others... others) {
  return Elements<Args, 1 + sizeof...(Others)>{kernel, layout, {first, others...}};
}

// Arguments of an element-wise kernel: they have a static constexpr member kElements and, if their
// numbers have rules, `const char* broken() const`, which returns a broken rule or null.
template <class Args>
concept ElementArgs = requires { Args::kElements; };

template <ElementArgs Args, class F>
void visit(Args& args, F&& f) {
  for (const Element<Args>& e : Args::kElements.list) f(e.name, e.access, args.*e.tensor);
}

struct CheckedElement {
  const char* name;
  const Tensor* tensor;
  bool wide, optional;
};
// broken: the rule that the call's numbers break, or null.
void check_elements(const char* kernel, ElementLayout layout, const char* broken,
                    const CheckedElement* list, size_t count);

template <ElementArgs Args>
void check(const Args& args) {
  constexpr auto& elements = Args::kElements;
  std::array<CheckedElement, elements.list.size()> list;
  for (size_t i = 0; i < list.size(); ++i) {
    const Element<Args>& e = elements.list[i];
    list[i] = {e.name, &(args.*e.tensor), e.is_wide, e.is_optional};
  }
  const char* broken = nullptr;
  if constexpr (requires { args.broken(); }) broken = args.broken();
  check_elements(elements.kernel, elements.layout, broken, list.data(), list.size());
}

}  // namespace megatron::kernels
