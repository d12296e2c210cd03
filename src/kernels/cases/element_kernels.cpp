#include <fmt/core.h>

#include <array>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// Properties of one element-wise kernel's Cases.
template <class Args>
struct Row {
  Args args;  // numeric arguments
  std::array<double, Args::kElements.inputs()>
      scales;        // scales of the inputs; 0: a third of the elements are 0, the others 0.25
  double roundings;  // roundings per result (tolerance())
  Shape real;
};

// Layout of one Case's tensors.
struct Lie {
  Shape shape;
  Layout in, out;
  bool in_place = false, without_optional = false, real = false;
  bool rows = false;  // ElementLayout::rows
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("{} {}{}{}{}", shape.str(), describe(type, in),
                       rows ? " to " + describe(type, out) : "", in_place ? " in place" : "",
                       without_optional ? " without an output" : "");
  }
};

std::vector<Lie> lies_of(bool rows, const Shape& real) {
  std::vector<Lie> list;
  if (rows) {
    for (const int64_t count : {0, 1, 7}) list.push_back({{count, 33}, kPadded, kMisaligned});
    list.push_back({{7, 33}, {}, kPadded});
    list.push_back({.shape = {5, 64}});
    list.push_back({.shape = {5, 64}, .in = {.offset = 0, .row_padding = 64}, .in_place = true});
  } else {
    for (const int64_t count : {0, 1, 7}) list.push_back({{count, 33}, kMisaligned, kMisaligned});
    list.push_back({.shape = {5, 64}, .in_place = true});
  }
  list.push_back({.shape = {64}, .without_optional = true});
  list.push_back({.shape = real, .real = true});
  for (Lie& lie : list) lie.rows = rows;
  return in_types(list);
}

Tensor make_input(Inputs& inputs, const char* name, const Lie& lie, DType type, double scale) {
  if (scale != 0) return inputs.normal(name, lie.shape, type, scale, lie.in);
  std::vector<double> values;
  for (int64_t i = 0; i < lie.shape.elements(); ++i) values.push_back(i % 3 == 0 ? 0 : 0.25);
  return inputs.values(name, lie.shape, type, values);
}

template <class Args>
Args make_args(Inputs& inputs, const Row<Args>& row, const Lie& lie) {
  constexpr auto& elements = Args::kElements;
  Args args = row.args;
  for (size_t k = 0; k < elements.list.size(); ++k) {
    const Element<Args>& e = elements.list[k];
    const DType own = e.is_wide ? accumulator(lie.type) : lie.type;
    if (e.is_optional && lie.without_optional) continue;
    args.*e.tensor = k < elements.inputs() ? make_input(inputs, e.name, lie, own, row.scales[k])
                     : lie.in_place && e.may_be != nullptr
                         ? inputs.updated(e.name, args.*e.may_be)
                         : inputs.output(e.name, lie.shape, own, lie.out);
  }
  return args;
}

template <class Args>
void add(std::vector<Case>& cases, void (*Table::*kernel)(const Args&, Stream&),
         const Row<Args>& row) {
  bool has_optional = false, has_in_place = false;
  for (const Element<Args>& e : Args::kElements.list) {
    has_optional |= e.is_optional;
    has_in_place |= e.may_be != nullptr;
  }
  for (const Lie& lie : lies_of(Args::kElements.layout == ElementLayout::rows, row.real)) {
    if ((lie.in_place && !has_in_place) || (lie.without_optional && !has_optional)) continue;
    cases.push_back(
        case_of(kernel, lie, tolerance(lie.type, row.roundings),
                [row](Inputs& inputs, const Lie& l) { return make_args(inputs, row, l); }));
  }
}

}  // namespace

void add_element_cases(std::vector<Case>& cases) {
  // Rounds the factor and the product.
  add(cases, &Table::scale, {ScaleArgs{.factor = 0.3}, {1}, 2, {4096, 768}});
  // tanh is within 4 u, and its argument is rounded twice.
  add(cases, &Table::soft_cap, {SoftCapArgs{.cap = 1.5}, {2}, 12, {1024, 4096}});
  // 1 - tanh^2 cancels for values beyond the cap.
  add(cases, &Table::soft_cap_backward,
      {SoftCapBackwardArgs{.cap = 1.5}, {0.5, 1}, 16, {1024, 4096}});
  add(cases, &Table::clip, {ClipArgs{.limit = 0.75}, {1}, 1, {4096, 1024}});
  add(cases, &Table::clip_backward, {ClipBackwardArgs{.limit = 0.75}, {1, 1}, 1, {4096, 1024}});
  add(cases, &Table::gate, {GateArgs{}, {1, 3}, 8, {4096, 1024}});
  add(cases, &Table::gate_backward, {GateBackwardArgs{}, {1, 3, 1}, 16, {4096, 1024}});
  add(cases, &Table::squared_error, {SquaredErrorArgs{}, {1, 1, 0}, 4, {4096}});
}

}  // namespace megatron::kernels
