#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct GatedRows {
  int64_t tokens = 1, width = 2, groups = 1;
  Layout layout = {};
  bool sums = true;  // of the weight's gradient
  float beta = 0;
  bool real = false;
  DType type = DType::f32;
  GateOrder order = GateOrder::gate_first;

  bool norms() const { return order != GateOrder::gate_only; }
  std::string str() const {
    constexpr const char* kOrders[] = {"gate first", "norm first", "gate only"};
    return fmt::format("t={} w={} g={} {} {}{}{}", tokens, width, groups, describe(type, layout),
                       kOrders[static_cast<int>(order)], sums ? "" : " no sums",
                       beta != 0 ? " accumulated" : "");
  }
  Shape shape() const { return {tokens, width}; }
};

GatedNormArgs gated_norm_args(Inputs& inputs, const GatedRows& s) {
  GatedNormArgs args{.order = s.order,
                     .groups = s.groups,
                     .x = inputs.normal("x", s.shape(), s.type, 1, s.layout),
                     .z = inputs.normal("z", s.shape(), s.type, 1, s.layout)};
  if (s.norms()) args.weight = inputs.positive("weight", {s.width}, s.type, 0.5);
  args.out = inputs.output("out", s.shape(), s.type, s.layout);
  if (s.norms()) args.rstd = inputs.output("rstd", {s.tokens, s.groups}, accumulator(s.type));
  return args;
}

// The statistics come from the forward.
GatedNormBackwardArgs gated_norm_backward_args(Inputs& inputs, const GatedRows& s) {
  Inputs forward_inputs(inputs.runtime());
  const GatedNormArgs f = gated_norm_args(forward_inputs, s);
  table(inputs.forward_of(s.real)).gated_norm(f, inputs.runtime().stream());
  GatedNormBackwardArgs args{.order = s.order,
                             .groups = s.groups,
                             .x = f.x,
                             .z = f.z,
                             .weight = f.weight,
                             .rstd = f.rstd,
                             .dout = inputs.normal("dout", s.shape(), s.type, 1, s.layout),
                             .dx = inputs.output("dx", s.shape(), s.type, s.layout),
                             .dz = inputs.output("dz", s.shape(), s.type, s.layout)};
  if (s.norms() && s.sums)
    args.dweight = inputs.sum("dweight", {s.width}, accumulator(s.type), s.beta);
  return args;
}

std::vector<GatedRows> gated_rows() {
  const std::vector<GatedRows> shapes = in_types<GatedRows>({
      {},
      {.width = 1},
      {.tokens = 0, .width = 8, .groups = 2, .beta = 1},
      {.tokens = 7, .width = 33, .layout = kPadded, .beta = 1},
      {.tokens = 5, .width = 99, .groups = 3, .layout = kMisaligned},
      {.tokens = 3, .width = 24, .groups = 6, .sums = false},
      {.tokens = 70, .width = 96, .groups = 2, .layout = kPadded},
      {.tokens = 40, .width = 512, .groups = 8, .beta = 1},
      {.tokens = 2, .width = 4360},
      {.tokens = 4096, .width = 5120, .real = true},
      {.tokens = 4096, .width = 8192, .groups = 8, .real = true},
  });
  std::vector<GatedRows> all;
  for (const GateOrder order :
       {GateOrder::gate_first, GateOrder::norm_first, GateOrder::gate_only}) {
    for (const GatedRows& s : shapes) {
      all.push_back(s);
      all.back().order = order;
    }
  }
  return all;
}

}  // namespace

// Products of three factors reach 16 rms, twice the size that tolerance() expects in f32.
void add_gated_norm_cases(std::vector<Case>& cases) {
  constexpr double kLargest = 2;
  for (const GatedRows& s : gated_rows()) {  // a sigmoid, and as add_rms_norm
    const double size = static_cast<double>(s.width / s.groups);
    const double bound = kLargest * tolerance(s.type, 8 + 0.4 * std::sqrt(size));
    cases.push_back(case_of(&Table::gated_norm, s, bound, gated_norm_args));
  }
  for (const GatedRows& s : gated_rows()) {          // as add_rms_norm_backward
    if (s.norms() && s.width == s.groups) continue;  // the gradient of a norm of one element is 0
    const double size = static_cast<double>(s.width / s.groups);
    const double roundings = 12 + std::sqrt(size) + std::sqrt(static_cast<double>(s.tokens));
    cases.push_back(case_of(&Table::gated_norm_backward, s, kLargest * tolerance(s.type, roundings),
                            gated_norm_backward_args));
  }
}

}  // namespace megatron::kernels
