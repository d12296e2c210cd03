#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

constexpr const char* kFormats[] = {"e4m3", "e5m2", "e2m1"};
constexpr const char* kLayouts[] = {"tensor", "vectors of 128", "squares of 128", "mx", "nvfp4"};

Tensor number(Inputs& inputs, const char* name, double value) {
  return inputs.values(name, {}, DType::f32, std::span(&value, 1));
}

struct Encoded {
  int64_t rows = 1, columns = 2;
  LowFormat format = LowFormat::e4m3;
  ScaleLayout layout = ScaleLayout::tensor;
  bool transposed = false, square = false, stochastic = false, maxima = false, both = false;
  Layout place = {};
  bool real = false, large = false;
  DType type = DType::bf16;

  std::string str() const {
    return fmt::format("r={} c={} {} {} {}{}{}{}{}{}", rows, columns,
                       kFormats[static_cast<size_t>(format)], kLayouts[static_cast<size_t>(layout)],
                       describe(type, place), transposed ? " transposed" : "",
                       square ? " square" : "", stochastic ? " stochastic" : "",
                       maxima ? " maxima" : "", both ? " both ways" : "");
  }
};

EncodeOperandArgs encode_args(Inputs& inputs, const Encoded& e) {
  EncodeOperandArgs args{
      .transposed = e.transposed, .square = e.square, .stochastic = e.stochastic};
  args.x = inputs.normal("x", {e.rows, e.columns}, e.type, 3, e.place);
  const auto operand = [&](const std::string& name, bool transposed) {
    const int64_t rows = transposed ? e.columns : e.rows, depth = transposed ? e.rows : e.columns;
    CodedOperand to{.format = e.format, .layout = e.layout};
    to.codes = inputs.output(name + "codes",
                             {rows, e.format == LowFormat::e2m1 ? depth / 2 : depth}, DType::u8);
    if (e.layout != ScaleLayout::tensor)
      to.scales =
          inputs.output(name + "scales", scales_shape(e.layout, rows, depth), scale_type(e.layout));
    return to;
  };
  args.out = operand("", e.transposed);
  if (e.both) args.transpose_out = operand("transpose_", !e.transposed);
  if (has_tensor_scale(e.layout))
    args.out.tensor_scale =
        number(inputs, "tensor_scale", e.layout == ScaleLayout::tensor ? 37.3 : 253.76);
  if (e.both) args.transpose_out.tensor_scale = args.out.tensor_scale;
  if (e.stochastic) {
    args.noise = {
        42, 4711, {inputs.integers("sample_ids", {e.rows}, DType::i64, 0, int64_t{1} << 40)}};
    args.channels = {2, {{0, 132}, {20, 4000}}};
  }
  if (!e.maxima) return args;
  const QuantizedBlocks blocks = quantization_of(args).out;
  args.maxima = inputs.positive(
      "maxima", {ceil_div(e.rows, blocks.rows), ceil_div(e.columns, blocks.columns)}, DType::f32);
  return args;
}

// Codes and scales are those of the definition in every bit.
void add_encode_cases(std::vector<Case>& cases) {
  using enum ScaleLayout;
  using enum LowFormat;
  std::vector<Encoded> all;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{0, 8}, {2, 6}, {34, 150}, {300, 162}, {144, 208}}) {
    for (const bool transposed : {false, true}) {
      const auto add = [&](LowFormat format, ScaleLayout layout) -> Encoded& {
        all.push_back({.rows = rows,
                       .columns = columns,
                       .format = format,
                       .layout = layout,
                       .transposed = transposed});
        return all.back();
      };
      for (const ScaleLayout layout : {tensor, vectors_128, squares_128, mx_32}) add(e4m3, layout);
      for (const ScaleLayout layout : {tensor, vectors_128, mx_32}) add(e5m2, layout).both = true;
      add(e5m2, tensor).place = kMisaligned;
      add(e5m2, mx_32).place = kMisaligned;
      add(e2m1, nv_16);
      add(e2m1, nv_16).square = true;
      add(e2m1, nv_16).stochastic = true;
      Encoded& given = add(e2m1, nv_16);
      given.square = given.maxima = true;
    }
  }
  for (const Encoded& e : all) cases.push_back(case_of(&Table::encode_operand, e, 1, encode_args));
  for (const ScaleLayout layout : {tensor, vectors_128, squares_128, mx_32, nv_16}) {
    Encoded e{.rows = 4096,
              .columns = 768,
              .format = layout == nv_16 ? e2m1 : e4m3,
              .layout = layout,
              .real = true};
    cases.push_back(case_of(&Table::encode_operand, e, 1, encode_args));
    e.transposed = true;
    cases.push_back(case_of(&Table::encode_operand, e, 1, encode_args));
    e.both = layout != squares_128 && layout != nv_16;
    if (e.both) cases.push_back(case_of(&Table::encode_operand, e, 1, encode_args));
  }
  for (Case& made : cases) made.exact = true;
}

struct CodedProduct {
  int64_t m = 16, k = 16, n = 16;
  LowFormat a = LowFormat::e4m3, b = LowFormat::e4m3;
  ScaleLayout a_layout = ScaleLayout::tensor, b_layout = ScaleLayout::tensor;
  bool bias = false;
  float beta = 0;
  int64_t row_padding = 0;
  bool real = false, large = false;
  DType type = DType::bf16;

  std::string str() const {
    return fmt::format(
        "m={} k={} n={} {} {}, {}, {}, {}{}{}", m, k, n, kFormats[static_cast<size_t>(a)],
        kFormats[static_cast<size_t>(b)], kLayouts[static_cast<size_t>(a_layout)],
        kLayouts[static_cast<size_t>(b_layout)], describe(type, {.row_padding = row_padding}),
        bias ? " bias" : "", beta != 0 ? " accumulated" : "");
  }
};

// Codes of normal numbers times 10 (in e2m1 times 2), and scales of powers of two, 1/4 to 2.
CodedOperand operand(Inputs& inputs, const std::string& name, int64_t rows, int64_t depth,
                     LowFormat format, ScaleLayout layout) {
  const bool fp4 = format == LowFormat::e2m1;
  CodedOperand made{.format = format, .layout = layout};
  const Shape shape{rows, fp4 ? depth / 2 : depth};
  std::vector<double> codes;
  if (inputs.has_data()) {
    const std::vector<double> source =
        to_doubles(inputs.normal(name, {rows, depth}, DType::f32, fp4 ? 2 : 10));
    for (size_t i = 0; i < source.size(); ++i) {
      const uint8_t code = encode(format, source[i]);
      if (fp4 && i % 2 != 0) codes.back() += 16 * code;
      else codes.push_back(code);
    }
    made.codes = inputs.values(name, shape, DType::u8, codes);
  } else {
    made.codes = inputs.integers(name, shape, DType::u8, 0, 1);
  }
  if (has_tensor_scale(layout))
    made.tensor_scale = number(inputs, (name + "_scale").c_str(), name == "a" ? 12.5 : 7.25);
  if (layout == ScaleLayout::tensor) return made;
  const Shape scales = scales_shape(layout, rows, depth);
  const std::string scales_name = name + "_scales";
  if (!inputs.has_data()) {
    made.scales = scale_type(layout) == DType::f32
                      ? inputs.normal(scales_name, scales, DType::f32)
                      : inputs.integers(scales_name, scales, DType::u8, 0, 1);
    return made;
  }
  std::vector<double> stored;
  for (int64_t i = 0; i < scales.elements(); ++i) {
    const int64_t exponent = i * 7 % 4 - 2;
    const double scale = std::exp2(static_cast<double>(exponent));
    stored.push_back(layout == ScaleLayout::mx_32   ? static_cast<double>(exponent + 127)
                     : layout == ScaleLayout::nv_16 ? encode(LowFormat::e4m3, scale)
                                                    : scale);
  }
  made.scales = inputs.values(scales_name, scales, scale_type(layout), stored);
  return made;
}

CodedGemmArgs product_args(Inputs& inputs, const CodedProduct& p) {
  CodedGemmArgs args{.beta = p.beta};
  args.a = operand(inputs, "a", p.m, p.k, p.a, p.a_layout);
  args.b = operand(inputs, "b", p.n, p.k, p.b, p.b_layout);
  if (p.bias) args.bias = inputs.normal("bias", {p.n}, p.type);
  args.out = inputs.sum("out", {p.m, p.n}, p.type, p.beta, {.row_padding = p.row_padding}).out;
  return args;
}

// The bound of products of bf16 (cases/gemm.cpp), and that of tensor cores of Hopper, which add at
// most 128 products with 14 bits (DeepSeek-V3, 2024, section 3.5.2) and these sums in f32: 2^-13 of
// the result's rms, of which the largest of 1e8 errors is 6 times as large.
void add_product_cases(std::vector<Case>& cases) {
  using enum LowFormat;
  using enum ScaleLayout;
  const std::vector<CodedProduct> all = {
      {},
      {.m = 0},
      {.k = 0, .bias = true},
      {.m = 48, .k = 80, .n = 112, .bias = true},
      {.m = 80, .k = 528, .n = 32, .a = e5m2, .row_padding = 16},
      {.m = 32, .k = 64, .n = 96, .b = e5m2},
      {.m = 96, .k = 160, .n = 64, .a = e5m2, .beta = 1, .type = DType::f32},
      {.m = 144,
       .k = 208,
       .n = 272,
       .a_layout = vectors_128,
       .b_layout = squares_128,
       .bias = true},
      {.m = 32, .k = 400, .n = 48, .a = e5m2, .a_layout = vectors_128, .b_layout = squares_128},
      {.m = 272, .k = 656, .n = 160, .a_layout = squares_128, .b_layout = vectors_128},
      {.m = 48,
       .k = 272,
       .n = 144,
       .a = e5m2,
       .a_layout = vectors_128,
       .b_layout = vectors_128,
       .beta = 1,
       .type = DType::f32},
      {.m = 144, .k = 208, .n = 272, .a_layout = mx_32, .b_layout = mx_32, .bias = true},
      {.m = 48,
       .k = 272,
       .n = 32,
       .b = e5m2,
       .a_layout = mx_32,
       .b_layout = mx_32,
       .beta = 1,
       .type = DType::f32},
      {.m = 144,
       .k = 224,
       .n = 272,
       .a = e2m1,
       .b = e2m1,
       .a_layout = nv_16,
       .b_layout = nv_16,
       .bias = true},
      {.m = 48,
       .k = 288,
       .n = 32,
       .a = e2m1,
       .b = e2m1,
       .a_layout = nv_16,
       .b_layout = nv_16,
       .beta = 1,
       .type = DType::f32},
      {.m = 4096, .k = 4096, .n = 14336, .real = true, .large = true},
      {.m = 4096,
       .k = 4096,
       .n = 14336,
       .a_layout = vectors_128,
       .b_layout = squares_128,
       .real = true,
       .large = true},
      {.m = 14336,
       .k = 4096,
       .n = 4096,
       .a = e5m2,
       .beta = 1,
       .real = true,
       .large = true,
       .type = DType::f32},
      {.m = 14336,
       .k = 4096,
       .n = 4096,
       .a_layout = vectors_128,
       .b_layout = vectors_128,
       .beta = 1,
       .real = true,
       .large = true,
       .type = DType::f32},
      {.m = 4096, .k = 768, .n = 3072, .bias = true, .real = true},
  };
  for (const CodedProduct& p : all) {
    const double walk = 1 + 0.4 * std::sqrt(static_cast<double>(p.k));
    cases.push_back(
        case_of(&Table::coded_gemm, p, tolerance(p.type, walk) + 6 * 0x1p-13, product_args));
  }
}

}  // namespace

void add_coded_product_cases(std::vector<Case>& cases) {
  std::vector<Case> encoded;
  add_encode_cases(encoded);
  std::ranges::move(encoded, std::back_inserter(cases));
  add_product_cases(cases);
}

}  // namespace megatron::kernels
