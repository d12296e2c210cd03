#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Step {
  Shape shape;
  DType type = DType::f32;
  double step = 3;
  bool decay = true;
  double momentum = 0.9;  // SGD
  Layout layout;
  bool real = false;

  double elements() const { return static_cast<double>(shape.elements()); }
  std::string str() const {
    return fmt::format("{} step={} {}{}", shape.str(), step, describe(type, layout),
                       decay ? "" : " no decay");
  }
  // The value and its remainder are compared as the master they stand for.
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
  args.exp_avg = inputs.updated("exp_avg", inputs.normal("exp_avg", s.shape, wide, 0.1, s.layout));
  args.exp_avg_sq =
      inputs.updated("exp_avg_sq", inputs.positive("exp_avg_sq", s.shape, wide, 0.01, s.layout));
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

Case adam_case(const Step& s) {
  return {.kernel = "adam",
          .name = s.str(),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .make = [s](Runtime& runtime) { return make_adam(s, runtime); }};
}

Case sgd_case(const Step& s) {
  return {.kernel = "sgd",
          .name = s.str() + fmt::format(" momentum={}", s.momentum),
          .dtype = s.type,
          .tolerance = s.tolerance(),
          .real = s.real,
          .make = [s](Runtime& runtime) { return make_sgd(s, runtime); }};
}

Case grad_scale_case(int64_t n, double max_norm, bool real) {
  return {.kernel = "grad_scale",
          .name = fmt::format("n={} max_norm={}", n, max_norm),
          .dtype = DType::f64,
          .tolerance = 0x1p-50,  // the order is given; a root and two divisions
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
  return list;
}

}  // namespace

void add_optimizer_cases(std::vector<Case>& cases) {
  for (const double max_norm : {0.0, 1.0, 1e9}) {
    for (const int64_t n : {0, 1, 33, 10000}) cases.push_back(grad_scale_case(n, max_norm, false));
  }
  cases.push_back(grad_scale_case(7597, 1, true));
  for (const Step& s : steps()) cases.push_back(adam_case(s));
  for (const Step& s : steps()) cases.push_back(sgd_case(s));
}

}  // namespace megatron::kernels
