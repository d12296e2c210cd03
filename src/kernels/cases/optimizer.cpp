#include <fmt/core.h>

#include <cmath>

#include "base/philox.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Step {
  Shape shape;
  double step = 3;
  bool decay = true;
  double momentum = 0.9;                          // SGD
  DType first = DType::f32, second = DType::f32;  // Adam's moments; f32: as the gradient
  Layout layout;
  bool real = false, large = false;
  DType type = DType::f32;

  std::string str() const {
    return fmt::format("{} step={} {}{}", shape.str(), step, describe(type, layout),
                       decay ? "" : " no decay");
  }
  bool narrow() const { return first == DType::bf16 || second == DType::bf16; }
  // The value and its remainder are compared as the master weight that they represent.
  double tolerance() const { return kernels::tolerance(accumulator(type), 8); }
};

Tensor updated(Inputs& inputs, const char* name, const Step& s, DType type, double scale = 1) {
  return inputs.updated(name, inputs.normal(name, s.shape, type, scale, s.layout));
}

// Arguments that the optimizers share.
template <class Args>
Args step_args(Inputs& inputs, const Step& s) {
  Args args{.parameter = {.value = updated(inputs, "value", s, s.type)}};
  if (s.type == DType::bf16) {
    args.parameter.remainder = inputs.updated(
        "remainder", inputs.integers("remainder", s.shape, DType::i16, -32768, 32768));
  }
  args.grad = inputs.normal("grad", s.shape, accumulator(s.type), 100, s.layout);
  args.lr = inputs.scalar("lr", 0.01);
  args.weight_decay = inputs.scalar("weight_decay", 0.1);
  if constexpr (requires { args.step; }) args.step = inputs.scalar("step", s.step);
  args.scale = inputs.scalar("scale", 0.013);
  args.decay = s.decay;
  return args;
}

// Random codes: of roots (roots), or of ratios except the code of NaN.
Tensor codes(Inputs& inputs, const char* name, const Shape& shape, bool roots) {
  const RandomStream random(1, name);
  std::vector<double> all(static_cast<size_t>(inputs.has_data() ? shape.elements() : 0));
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t bits = random.bits(i);
    all[i] = static_cast<double>(roots ? bits % 256 : bits % 127 + (bits >> 63) * 128);
  }
  return inputs.values(name, shape, DType::u8, all);
}

Tensor moment(Inputs& inputs, const char* name, const Step& s, DType type, bool is_square) {
  if (type == DType::u8) return inputs.updated(name, codes(inputs, name, s.shape, is_square));
  if (type == DType::f32) type = accumulator(s.type);
  if (!is_square) return updated(inputs, name, s, type, 0.1);
  return inputs.updated(name, inputs.positive(name, s.shape, type, 0.01, s.layout));
}

AdamArgs adam_args(Inputs& inputs, const Step& s) {
  auto args = step_args<AdamArgs>(inputs, s);
  args.exp_avg = moment(inputs, "exp_avg", s, s.first, false);
  args.exp_avg_sq = moment(inputs, "exp_avg_sq", s, s.second, true);
  args.beta2 = 0.95;
  return args;
}

SgdArgs sgd_args(Inputs& inputs, const Step& s) {
  auto args = step_args<SgdArgs>(inputs, s);
  if (s.momentum != 0) args.buffer = updated(inputs, "buffer", s, accumulator(s.type));
  args.momentum = s.momentum;
  return args;
}

LionArgs lion_args(Inputs& inputs, const Step& s) {
  auto args = step_args<LionArgs>(inputs, s);
  args.exp_avg = updated(inputs, "exp_avg", s, accumulator(s.type));
  return args;
}

Case muon_momentum_case(const Step& step, bool nesterov) {
  Case made = case_of(
      &Table::muon_momentum, step, step.tolerance(), [nesterov](Inputs& inputs, const Step& s) {
        return MuonMomentumArgs{.grad = inputs.normal("grad", s.shape, s.type, 100, s.layout),
                                .momentum = updated(inputs, "momentum", s, s.type),
                                .scale = inputs.scalar("scale", 0.013),
                                .direction = inputs.output("direction", s.shape, s.type, s.layout),
                                .nesterov = nesterov};
      });
  if (nesterov) made.name += " nesterov";
  return made;
}

Case unit_norm_case(const Step& step, DType out) {
  Case made = case_of(
      &Table::unit_norm, step, kernels::tolerance(out, 2), [out](Inputs& inputs, const Step& s) {
        return UnitNormArgs{.x = inputs.normal("x", s.shape, s.type, 1, s.layout),
                            .partials = inputs.positive("partials", {33}, DType::f64),
                            .out = inputs.output("out", s.shape, out, s.layout)};
      });
  made.name += fmt::format(" to {}", name(out));
  return made;
}

Case weighted_sum_case(Step step, DType x, DType y, DType out) {
  step.type = x;
  Case made = case_of(&Table::weighted_sum, step, kernels::tolerance(out, 3),
                      [=](Inputs& inputs, const Step& s) {
                        return WeightedSumArgs{.x = inputs.normal("x", s.shape, x, 1, s.layout),
                                               .y = inputs.normal("y", s.shape, y, 1, s.layout),
                                               .out = inputs.output("out", s.shape, out, s.layout),
                                               .x_weight = -4.775,
                                               .y_weight = 2.0315};
                      });
  made.name = fmt::format("{} {} + {} to {}{}", step.shape.str(), name(x), name(y), name(out),
                          step.layout.offset > 0 ? " misaligned" : "");
  return made;
}

void add_muon_cases(std::vector<Case>& cases) {
  const std::vector<Step> shapes = {{.shape = {1}},
                                    {.shape = {7, 33}, .layout = kMisaligned},
                                    {.shape = {0, 4}},
                                    {.shape = {70, 1000}}};
  for (const Step& s : in_types(shapes, {DType::f32, DType::f64})) {
    for (const bool nesterov : {false, true}) cases.push_back(muon_momentum_case(s, nesterov));
    cases.push_back(unit_norm_case(s, s.type));
    if (s.type == DType::f32) cases.push_back(unit_norm_case(s, DType::bf16));
    cases.push_back(weighted_sum_case(s, s.type, s.type, s.type));
  }
  const Step odd{.shape = {7, 33}, .layout = kMisaligned}, big{.shape = {12288, 768}, .real = true};
  for (const DType x : {DType::f32, DType::bf16}) {
    for (const DType y : {DType::f32, DType::bf16}) {
      for (const DType out : {DType::bf16, DType::f32})
        if (x != DType::f32 || y != x || out != x)
          cases.push_back(weighted_sum_case(odd, x, y, out));
    }
  }
  cases.push_back(muon_momentum_case(big, true));
  cases.push_back(unit_norm_case(big, DType::bf16));
  cases.push_back(weighted_sum_case(big, DType::f32, DType::f32, DType::f32));
}

Case adam_case(const Step& s) {
  Case made = case_of(&Table::adam, s,
                      s.narrow() ? kernels::tolerance(DType::bf16, 8) : s.tolerance(), adam_args);
  if (s.first != DType::f32) made.name += fmt::format(" exp_avg {}", name(s.first));
  if (s.second != DType::f32) made.name += fmt::format(" exp_avg_sq {}", name(s.second));
  return made;
}

Case grad_scale_case(int64_t n, double max_norm, bool real) {
  const Named named{fmt::format("n={} max_norm={}", n, max_norm), DType::f64, real};
  // The order of the additions is specified; a root and two divisions follow.
  return case_of(&Table::grad_scale, named, 0x1p-50, [=](Inputs& inputs, const Named&) {
    return GradScaleArgs{
        inputs.positive("partials", {n}, DType::f64), inputs.scalar("divisor", 1.5), max_norm,
        inputs.output("norm", {}, DType::f64), inputs.output("scale", {}, DType::f64)};
  });
}

std::vector<Step> steps() {
  std::vector<Step> list = in_types<Step>(
      {
          {.shape = {1}, .step = 1},
          {.shape = {2}, .step = 1, .momentum = 0},
          {.shape = {7, 33}, .layout = kMisaligned},
          {.shape = {7, 33}, .step = 1000, .decay = false, .momentum = 0},
          {.shape = {0, 4}},
          {.shape = {70, 300}, .step = 2},
          {.shape = {50304, 768}, .real = true},
      },
      {DType::f32, DType::bf16, DType::f64});
  list.push_back({.shape = {14336, 4096}, .real = true, .large = true, .type = DType::bf16});
  return list;
}

}  // namespace

void add_optimizer_cases(std::vector<Case>& cases) {
  for (const double max_norm : {0.0, 1.0, 1e9}) {
    for (const int64_t n : {0, 1, 33, 10000}) cases.push_back(grad_scale_case(n, max_norm, false));
  }
  cases.push_back(grad_scale_case(7597, 1, true));
  for (const Step& s : steps()) cases.push_back(adam_case(s));
  constexpr DType kWide = DType::f32, kHalf = DType::bf16, kCode = DType::u8;
  for (const auto& [first, second] : {std::pair{kHalf, kHalf},
                                      {kHalf, kWide},
                                      {kWide, kHalf},
                                      {kCode, kCode},
                                      {kCode, kWide},
                                      {kWide, kCode},
                                      {kCode, kHalf},
                                      {kHalf, kCode}}) {
    for (Step s :
         {Step{.shape = {7, 33}, .layout = kMisaligned},
          Step{.shape = {7, 33}, .type = DType::bf16}, Step{.shape = {7, 33}, .type = DType::f64},
          Step{.shape = {50304, 768}, .real = true, .type = DType::bf16}}) {
      if (s.real && first != second) continue;
      s.first = first;
      s.second = second;
      cases.push_back(adam_case(s));
    }
  }
  for (const Step& s : steps()) {
    cases.push_back(case_of(&Table::sgd, s, s.tolerance(), sgd_args));
    cases.back().name += fmt::format(" momentum={}", s.momentum);
    if (s.momentum != 0) cases.push_back(case_of(&Table::lion, s, s.tolerance(), lion_args));
  }
  add_muon_cases(cases);
}

}  // namespace megatron::kernels
