#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// A Case whose results are equal to the definition in every bit.
template <class Args, class S, class F>
Case exact_case(void (*Table::*kernel)(const Args&, Stream&), const S& shape, F arguments) {
  Case made = case_of(kernel, shape, 1, std::move(arguments));
  made.exact = true;
  return made;
}

struct Matrix {
  int64_t rows = 1, columns = 1;
  Layout layout = {};
  bool real = false;
  DType type = DType::f32;
  bool tiny = false;  // times 2^-100: values and scales are subnormal

  std::string str() const {
    return fmt::format("r={} c={} {}{}", rows, columns, describe(type, layout),
                       tiny ? " tiny" : "");
  }
  // Rows whose sizes are 2^-24 to 2^24 of each other, zeros; with specials an infinity, a NaN
  // and -0.
  Tensor input(Inputs& inputs, bool specials) const {
    if (real || rows * columns == 0 || !inputs.has_data())
      return inputs.normal("x", {rows, columns}, type, 1, layout);
    const std::vector<double> plain = to_doubles(inputs.normal("source", {rows, columns}, type, 1));
    std::vector<double> x = plain;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / columns;
      x[i] *= std::exp2(static_cast<double>(row * 7 % 49) - (tiny ? 124 : 24));
      if (row % 5 == 3 && i % 3 != 0) x[i] = 0;
    }
    if (specials && x.size() > 20) {
      x[17] = std::numeric_limits<double>::infinity();
      x[11] = std::numeric_limits<double>::quiet_NaN();
      x[3] = -0.0;
    }
    return inputs.values("x", {rows, columns}, type, x);
  }
};

Tensor number(Inputs& inputs, const char* name, double value) {
  return inputs.values(name, {}, DType::f32, std::span(&value, 1));
}

struct Way {
  int64_t rows = 1, columns = 1;
};

struct Quantize : Matrix {
  LowFormat format = LowFormat::e4m3;
  BlockScale rule = BlockScale::given;
  Way way = {};
  bool stochastic = false;
  bool divided = false;  // runs of channels
  bool grouped = false;  // groups of rows
  bool codes_alone = false;
  bool maxima = false;  // given
  bool values_alone = false;

  std::string str() const {
    constexpr const char* kFormats[] = {"e4m3", "e5m2", "e2m1"};
    constexpr const char* kRules[] = {"given",      "power of two", "e8m0",
                                      "e8m0 floor", "nvfp4",        "nvfp4 quotient"};
    return fmt::format("{} {} {}x{} {}{}{}{}{}{}{}", kFormats[static_cast<size_t>(format)],
                       kRules[static_cast<size_t>(rule)], way.rows, way.columns, Matrix::str(),
                       stochastic ? " stochastic" : "", divided ? " divided" : "",
                       grouped ? " grouped" : "", codes_alone ? " codes" : "",
                       maxima ? " maxima" : "", values_alone ? " values" : "");
  }
};

QuantizedBlocks blocks_of(Inputs& inputs, const Quantize& q) {
  const Shape shape{q.rows, q.columns};
  QuantizedBlocks to{.rows = q.way.rows, .columns = q.way.columns};
  if (!q.codes_alone) to.values = inputs.output("values", shape, q.type, q.layout);
  if ((q.real && !q.codes_alone) || q.grouped || q.values_alone) return to;
  to.codes = inputs.output("codes", shape, DType::u8);
  if (q.rule != BlockScale::given)
    to.scales =
        inputs.output("scales", {ceil_div(q.rows, q.way.rows), ceil_div(q.columns, q.way.columns)},
                      q.rule == BlockScale::power_of_two ? DType::f32 : DType::u8);
  return to;
}

Tensor row_groups(Inputs& inputs, int64_t count) {
  const auto rows = static_cast<double>(count);
  return inputs.values(
      "row_groups", {5}, DType::i32,
      std::vector{0.0, 0.0, std::floor(rows / 3), std::floor(rows / 2), std::floor(rows * 0.9)});
}

QuantizeArgs quantize_args(Inputs& inputs, const Quantize& q) {
  QuantizeArgs args{.format = q.format, .rule = q.rule, .stochastic = q.stochastic};
  const bool quotient = q.rule == BlockScale::nvfp4_quotient;
  args.x = q.input(inputs, q.rule == BlockScale::given);
  if (q.rule == BlockScale::given) args.scale = number(inputs, "scale", 37.3);
  if (q.rule == BlockScale::nvfp4 || quotient)
    args.scale = number(inputs, "scale", quotient ? 0.018601 : 53.76);
  args.out = blocks_of(inputs, q);
  if (q.stochastic)
    args.noise = {
        42, 4711, {inputs.integers("sample_ids", {q.rows}, DType::i64, 0, int64_t{1} << 40)}};
  if (q.grouped) args.row_groups = row_groups(inputs, q.rows);
  if (q.maxima)
    args.maxima = inputs.positive(
        "maxima", {ceil_div(q.rows, q.way.rows), ceil_div(q.columns, q.way.columns)}, DType::f32);
  if (q.divided) args.channels = {3, {{0, 132}, {20, 4000}, {24, 8000}}};
  return args;
}

void add_quantize_cases(std::vector<Case>& cases) {
  using enum BlockScale;
  using enum LowFormat;
  std::vector<Quantize> all;
  // Several tiles of the CPU's kernel, by rows and by columns.
  for (const Matrix& m : {Matrix{1, 1}, Matrix{0, 8}, Matrix{5, 33, kMisaligned}, Matrix{130, 140},
                          Matrix{3, 1040}}) {
    for (const LowFormat format : {e4m3, e5m2, e2m1}) {
      if (format != e4m3 && m.columns > 1000) continue;
      all.push_back({m, format, given});
      for (const Way& way : {Way{1, 128}, Way{128, 1}})
        all.push_back({m, format, power_of_two, way});
      all.push_back({m, format, power_of_two, {128, 128}});
      for (const Way& way : {Way{1, 32}, Way{32, 1}}) all.push_back({m, format, e8m0, way});
      all.push_back({m, format, e8m0_floor, {1, 32}});
    }
    for (const Way& way : {Way{1, 16}, Way{16, 1}}) all.push_back({m, e2m1, nvfp4, way});
    all.push_back({m, e2m1, nvfp4, {16, 16}});
    for (const Way& way : {Way{16, 16}, Way{16, 1}})
      all.push_back({m, e2m1, nvfp4, way, false, false, false, false, true});
    all.push_back({m, e2m1, nvfp4_quotient, {1, 16}});
    all.push_back({m, e2m1, nvfp4, {1, 16}, true});
    all.push_back({m, e2m1, nvfp4, {16, 1}, true, true});
    all.push_back({m, e4m3, e8m0, {32, 1}, false, false, true});
    all.push_back({m, e2m1, nvfp4, {16, 1}, true, true, true});
    for (const LowFormat format : {e4m3, e5m2})
      all.push_back({m, format, given, {}, false, false, false, true});
  }
  const Matrix tiny{.rows = 20, .columns = 80, .tiny = true};
  const Matrix plain{.rows = 130, .columns = 140};
  std::vector<Quantize> values;
  for (const LowFormat format : {e4m3, e5m2}) {
    values.push_back({plain, format, given});
    for (const Matrix& m : {plain, tiny}) {
      for (const Way& way : {Way{1, 128}, Way{128, 1}, Way{128, 128}})
        values.push_back({m, format, power_of_two, way});
      for (const Way& way : {Way{1, 32}, Way{32, 1}}) values.push_back({m, format, e8m0, way});
    }
  }
  for (const Way& way : {Way{1, 16}, Way{16, 1}, Way{16, 16}})
    values.push_back({plain, e2m1, nvfp4, way});
  for (Quantize& q : values) {
    q.values_alone = true;
    all.push_back(q);
  }
  const Matrix real{.rows = 4096, .columns = 768, .real = true};
  all.push_back({real, e4m3, given});
  all.push_back({real, e4m3, given, {}, false, false, false, true});
  for (const Way& way : {Way{1, 128}, Way{128, 1}}) all.push_back({real, e4m3, power_of_two, way});
  for (const Way& way : {Way{1, 32}, Way{32, 1}}) all.push_back({real, e4m3, e8m0, way});
  for (const Way& way : {Way{1, 16}, Way{16, 1}}) all.push_back({real, e2m1, nvfp4, way});
  for (const Quantize& q : in_types(all, {DType::f32, DType::bf16, DType::f64})) {
    if (q.type == DType::f64 && q.rows * q.columns > 1000) continue;  // the reference alone has f64
    cases.push_back(exact_case(&Table::quantize, q, quantize_args));
  }
}

TensorScaleArgs scale_args(Inputs& inputs, double amax, int64_t history) {
  TensorScaleArgs args{.largest = 448, .margin = 1, .delayed = history >= 0, .use_history = true};
  args.amax = number(inputs, "amax", amax);
  if (history > 0)
    args.history = inputs.updated("history", inputs.positive("history", {history}, DType::f32));
  args.scale = args.delayed ? inputs.updated("scale", number(inputs, "scale", 3))
                            : inputs.output("scale", {}, DType::f32);
  return args;
}

void add_tensor_scale_cases(std::vector<Case>& cases) {
  for (const double amax : {0.0, 1e-39, 0.3, 3e38, std::numeric_limits<double>::infinity()}) {
    for (const int64_t history : {-1, 0, 5}) {
      const Named named{fmt::format("amax={} history={}", amax, history)};
      cases.push_back(exact_case(&Table::tensor_scale, named, [=](Inputs& inputs, const Named&) {
        return scale_args(inputs, amax, history);
      }));
    }
  }
}

}  // namespace

void add_quantize_family_cases(std::vector<Case>& cases) {
  add_quantize_cases(cases);
  add_tensor_scale_cases(cases);
  const std::vector<Matrix> shapes = {
      {}, {0, 8}, {16, 33, kMisaligned}, {55, 700}, {.rows = 4096, .columns = 768, .real = true}};
  for (const Matrix& m : in_types(shapes)) {
    for (const float beta : {0.F, 1.F}) {
      Case made = exact_case(&Table::amax, m, [=](Inputs& inputs, const Matrix& of) {
        AmaxArgs args{.x = inputs.normal("x", {of.rows, of.columns}, of.type, 1, of.layout)};
        args.out = beta == 0
                       ? Accumulate{inputs.output("out", {}, DType::f32)}
                       : Accumulate{inputs.updated("out", number(inputs, "before", 0.5)), beta};
        return args;
      });
      made.name += beta == 0 ? "" : " raised";
      cases.push_back(std::move(made));
    }
    for (const bool grouped : {false, true}) {
      // 16 additions.
      Case made = case_of(&Table::hadamard, m, tolerance(m.type, 16),
                          [=](Inputs& inputs, const Matrix& of) {
                            const Shape shape{of.rows, of.columns};
                            HadamardArgs args;
                            args.x = inputs.normal("x", shape, of.type, 1, of.layout);
                            if (grouped) args.row_groups = row_groups(inputs, of.rows);
                            args.out = inputs.output("out", shape, of.type, of.layout);
                            return args;
                          });
      made.name += grouped ? " grouped" : "";
      cases.push_back(std::move(made));
    }
  }
}

}  // namespace megatron::kernels
