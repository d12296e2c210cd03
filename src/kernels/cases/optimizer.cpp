#include <fmt/core.h>

#include <array>
#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Step {
  Shape shape;
  DType type = DType::f32;
  double step = 3;
  bool decay = true;
  double momentum = 0.9;                             // SGD
  bool narrow_first = false, narrow_second = false;  // Adam: bf16 moments
  Layout layout;
  bool real = false, large = false;

  double elements() const { return static_cast<double>(shape.elements()); }
  std::string str() const {
    return fmt::format("{} step={} {}{}", shape.str(), step, describe(type, layout),
                       decay ? "" : " no decay");
  }
  // The value and its remainder are compared as the master weight that they represent.
  double tolerance() const { return kernels::tolerance(accumulator(type), 8); }
};

MasterWeight parameter(Inputs& inputs, const Step& s) {
  MasterWeight weight{inputs.updated("value", inputs.normal("value", s.shape, s.type, 1, s.layout)),
                      {}};
  if (s.type == DType::bf16) {
    weight.remainder = inputs.updated(
        "remainder", inputs.integers("remainder", s.shape, DType::i16, -32768, 32768));
  }
  return weight;
}

Case::Call make_adam(const Step& s, Runtime& runtime) {
  Inputs inputs(runtime);
  const DType wide = accumulator(s.type);
  AdamArgs args{.parameter = parameter(inputs, s)};
  args.grad = inputs.normal("grad", s.shape, wide, 100, s.layout);
  const DType first = s.narrow_first ? DType::bf16 : wide,
              second = s.narrow_second ? DType::bf16 : wide;
  args.exp_avg = inputs.updated("exp_avg", inputs.normal("exp_avg", s.shape, first, 0.1, s.layout));
  args.exp_avg_sq =
      inputs.updated("exp_avg_sq", inputs.positive("exp_avg_sq", s.shape, second, 0.01, s.layout));
  args.lr = inputs.scalar("lr", 0.01);
  args.weight_decay = inputs.scalar("weight_decay", 0.1);
  args.step = inputs.scalar("step", s.step);
  args.scale = inputs.scalar("scale", 0.013);
  args.beta2 = 0.95;
  args.decay = s.decay;
  return inputs.call([args](Stream& stream, const Table& table) { table.adam(args, stream); });
}

Case::Call make_sgd(const Step& s, Runtime& runtime) {
  Inputs inputs(runtime);
  const DType wide = accumulator(s.type);
  SgdArgs args{.parameter = parameter(inputs, s)};
  args.grad = inputs.normal("grad", s.shape, wide, 100, s.layout);
  if (s.momentum != 0)
    args.buffer = inputs.updated("buffer", inputs.normal("buffer", s.shape, wide, 1, s.layout));
  args.lr = inputs.scalar("lr", 0.01);
  args.weight_decay = inputs.scalar("weight_decay", 0.1);
  args.step = inputs.scalar("step", s.step);
  args.scale = inputs.scalar("scale", 0.013);
  args.momentum = s.momentum;
  args.decay = s.decay;
  return inputs.call([args](Stream& stream, const Table& table) { table.sgd(args, stream); });
}

Case::Call make_lion(const Step& s, Runtime& runtime) {
  Inputs inputs(runtime);
  const DType wide = accumulator(s.type);
  LionArgs args{.parameter = parameter(inputs, s)};
  args.grad = inputs.normal("grad", s.shape, wide, 100, s.layout);
  args.exp_avg = inputs.updated("exp_avg", inputs.normal("exp_avg", s.shape, wide, 1, s.layout));
  args.lr = inputs.scalar("lr", 0.01);
  args.weight_decay = inputs.scalar("weight_decay", 0.1);
  args.scale = inputs.scalar("scale", 0.013);
  args.decay = s.decay;
  return inputs.call([args](Stream& stream, const Table& table) { table.lion(args, stream); });
}

Case::Call make_momentum(const Step& s, bool nesterov, Runtime& runtime) {
  Inputs inputs(runtime);
  MuonMomentumArgs args{.grad = inputs.normal("grad", s.shape, s.type, 100, s.layout)};
  args.momentum =
      inputs.updated("momentum", inputs.normal("momentum", s.shape, s.type, 1, s.layout));
  args.scale = inputs.scalar("scale", 0.013);
  args.direction = inputs.output("direction", s.shape, s.type, s.layout);
  args.nesterov = nesterov;
  return inputs.call(
      [args](Stream& stream, const Table& table) { table.muon_momentum(args, stream); });
}

Case::Call make_unit_norm(const Step& s, DType out, Runtime& runtime) {
  Inputs inputs(runtime);
  const UnitNormArgs args{.x = inputs.normal("x", s.shape, s.type, 1, s.layout),
                          .partials = inputs.positive("partials", {33}, DType::f64),
                          .out = inputs.output("out", s.shape, out, s.layout)};
  return inputs.call([args](Stream& stream, const Table& table) { table.unit_norm(args, stream); });
}

Case::Call make_weighted_sum(const Step& s, std::array<DType, 3> types, Runtime& runtime) {
  Inputs inputs(runtime);
  const WeightedSumArgs args{.x = inputs.normal("x", s.shape, types[0], 1, s.layout),
                             .y = inputs.normal("y", s.shape, types[1], 1, s.layout),
                             .out = inputs.output("out", s.shape, types[2], s.layout),
                             .x_weight = -4.775,
                             .y_weight = 2.0315};
  return inputs.call(
      [args](Stream& stream, const Table& table) { table.weighted_sum(args, stream); });
}

Case lion_case(const Step& s) {
  return {.kernel = "lion",
          .name = s.str(),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .large = s.large,
          .make = [s](Runtime& runtime) { return make_lion(s, runtime); }};
}

Case muon_momentum_case(const Step& s, bool nesterov) {
  return {.kernel = "muon_momentum",
          .name = s.str() + (nesterov ? " nesterov" : ""),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .large = s.large,
          .make = [=](Runtime& runtime) { return make_momentum(s, nesterov, runtime); }};
}

Case unit_norm_case(const Step& s, DType out) {
  return {.kernel = "unit_norm",
          .name = s.str() + fmt::format(" to {}", name(out)),
          .dtype = s.type,
          .tolerance = kernels::tolerance(out, 2),
          .real = s.real,
          .large = s.large,
          .make = [=](Runtime& runtime) { return make_unit_norm(s, out, runtime); }};
}

Case weighted_sum_case(const Step& s, std::array<DType, 3> types) {
  return {.kernel = "weighted_sum",
          .name = fmt::format("{} {} + {} to {}{}", s.shape.str(), name(types[0]), name(types[1]),
                              name(types[2]), s.layout.offset > 0 ? " misaligned" : ""),
          .dtype = types[0],
          .tolerance = kernels::tolerance(types[2], 3),
          .real = s.real,
          .large = s.large,
          .make = [=](Runtime& runtime) { return make_weighted_sum(s, types, runtime); }};
}

void add_muon_cases(std::vector<Case>& cases) {
  std::vector<Case> momenta, norms, sums;
  for (const DType type : {DType::f32, DType::f64}) {
    for (Step s : {Step{.shape = {1}}, Step{.shape = {7, 33}, .layout = kMisaligned},
                   Step{.shape = {0, 4}}, Step{.shape = {70, 1000}}}) {
      s.type = type;
      for (const bool nesterov : {false, true}) momenta.push_back(muon_momentum_case(s, nesterov));
      norms.push_back(unit_norm_case(s, type));
      if (type == DType::f32) norms.push_back(unit_norm_case(s, DType::bf16));
      sums.push_back(weighted_sum_case(s, {type, type, type}));
    }
  }
  const Step odd{.shape = {7, 33}, .layout = kMisaligned}, big{.shape = {12288, 768}, .real = true};
  for (const DType x : {DType::f32, DType::bf16}) {
    for (const DType y : {DType::f32, DType::bf16}) {
      for (const DType out : {DType::bf16, DType::f32})
        if (x != DType::f32 || y != x || out != x)
          sums.push_back(weighted_sum_case(odd, {x, y, out}));
    }
  }
  momenta.push_back(muon_momentum_case(big, true));
  norms.push_back(unit_norm_case(big, DType::bf16));
  sums.push_back(weighted_sum_case(big, {DType::f32, DType::f32, DType::f32}));
  for (const auto* family : {&momenta, &norms, &sums})
    cases.insert(cases.end(), family->begin(), family->end());
}

Case adam_case(const Step& s) {
  const bool narrow = s.narrow_first || s.narrow_second;
  return {.kernel = "adam",
          .name = s.str() + (s.narrow_first ? " exp_avg bf16" : "") +
                  (s.narrow_second ? " exp_avg_sq bf16" : ""),
          .dtype = s.type,
          .tolerance = narrow ? kernels::tolerance(DType::bf16, 8) : s.tolerance(),
          .real = s.real,
          .large = s.large,
          .make = [s](Runtime& runtime) { return make_adam(s, runtime); }};
}

Case sgd_case(const Step& s) {
  return {.kernel = "sgd",
          .name = s.str() + fmt::format(" momentum={}", s.momentum),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .large = s.large,
          .make = [s](Runtime& runtime) { return make_sgd(s, runtime); }};
}

Case grad_scale_case(int64_t n, double max_norm, bool real) {
  return {.kernel = "grad_scale",
          .name = fmt::format("n={} max_norm={}", n, max_norm),
          .dtype = DType::f64,
          .tolerance = 0x1p-50,  // the order is fixed; a root and two divisions
          .real = real,
          .make = [=](Runtime& runtime) {
            Inputs inputs(runtime);
            const GradScaleArgs args{inputs.positive("partials", {n}, DType::f64),
                                     inputs.scalar("divisor", 1.5), max_norm,
                                     inputs.output("norm", {}, DType::f64),
                                     inputs.output("scale", {}, DType::f64)};
            return inputs.call(
                [args](Stream& stream, const Table& table) { table.grad_scale(args, stream); });
          }};
}

std::vector<Step> steps() {
  std::vector<Step> list;
  for (const DType type : {DType::f32, DType::bf16, DType::f64}) {
    list.push_back({.shape = {1}, .type = type, .step = 1});
    list.push_back({.shape = {2}, .type = type, .step = 1, .momentum = 0});
    list.push_back({.shape = {7, 33}, .type = type, .layout = kMisaligned});
    list.push_back({.shape = {7, 33}, .type = type, .step = 1000, .decay = false, .momentum = 0});
    list.push_back({.shape = {0, 4}, .type = type});
    list.push_back({.shape = {70, 300}, .type = type, .step = 2});
    if (type != DType::f64) list.push_back({.shape = {50304, 768}, .type = type, .real = true});
  }
  list.push_back({.shape = {14336, 4096}, .type = DType::bf16, .real = true, .large = true});
  return list;
}

}  // namespace

void add_optimizer_cases(std::vector<Case>& cases) {
  for (const double max_norm : {0.0, 1.0, 1e9}) {
    for (const int64_t n : {0, 1, 33, 10000}) cases.push_back(grad_scale_case(n, max_norm, false));
  }
  cases.push_back(grad_scale_case(7597, 1, true));
  for (const Step& s : steps()) cases.push_back(adam_case(s));
  for (const auto& [first, second] : {std::pair{true, true}, {true, false}, {false, true}}) {
    for (Step s : {Step{.shape = {7, 33}, .layout = kMisaligned},
                   Step{.shape = {7, 33}, .type = DType::bf16},
                   Step{.shape = {50304, 768}, .type = DType::bf16, .real = first && second}}) {
      if (s.shape[0] > 1000 && !s.real) continue;
      s.narrow_first = first;
      s.narrow_second = second;
      cases.push_back(adam_case(s));
    }
  }
  for (const Step& s : steps()) cases.push_back(sgd_case(s));
  for (const Step& s : steps()) {
    if (s.momentum != 0) cases.push_back(lion_case(s));
  }
  add_muon_cases(cases);
}

}  // namespace megatron::kernels
