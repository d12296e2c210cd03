#include <fmt/core.h>

#include <cmath>

#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

struct Fp8Product {
  int64_t m = 16, k = 16, n = 16;
  LowFormat a = LowFormat::e4m3, b = LowFormat::e4m3;
  bool bias = false;
  float beta = 0;
  int64_t row_padding = 0;
  bool real = false, large = false;
  DType type = DType::bf16;

  std::string str() const {
    const auto name_of = [](LowFormat f) { return f == LowFormat::e5m2 ? "e5m2" : "e4m3"; };
    return fmt::format("m={} k={} n={} {} {} {}{}{}", m, k, n, name_of(a), name_of(b),
                       describe(type, {.row_padding = row_padding}), bias ? " bias" : "",
                       beta != 0 ? " accumulated" : "");
  }
};

// Codes of normal numbers times 10.
Tensor codes(Inputs& inputs, const char* name, int64_t rows, int64_t columns, LowFormat format) {
  const Shape shape{rows, columns};
  if (!inputs.has_data()) return inputs.integers(name, shape, DType::u8, 0, 1);
  std::vector<double> all = to_doubles(inputs.normal(name, shape, DType::f32, 10));
  for (double& value : all) value = encode(format, value);
  return inputs.values(name, shape, DType::u8, all);
}

Fp8GemmArgs fp8_args(Inputs& inputs, const Fp8Product& p) {
  Fp8GemmArgs args{.a_format = p.a, .b_format = p.b, .beta = p.beta};
  args.a = codes(inputs, "a", p.m, p.k, p.a);
  args.b = codes(inputs, "b", p.n, p.k, p.b);
  const double scales[] = {12.5, 7.25};
  args.a_scale = inputs.values("a_scale", {}, DType::f32, std::span(scales, 1));
  args.b_scale = inputs.values("b_scale", {}, DType::f32, std::span(scales + 1, 1));
  if (p.bias) args.bias = inputs.normal("bias", {p.n}, p.type);
  args.out = inputs.sum("out", {p.m, p.n}, p.type, p.beta, {.row_padding = p.row_padding}).out;
  return args;
}

}  // namespace

// The bound of products of bf16 (cases/gemm.cpp), and that of tensor cores of Hopper, which add at
// most 128 products with 14 bits (DeepSeek-V3, 2024, section 3.5.2) and these sums in f32: 2^-13 of
// the result's rms, of which the largest of 1e8 errors is 6 times as large.
void add_fp8_gemm_cases(std::vector<Case>& cases) {
  using enum LowFormat;
  const std::vector<Fp8Product> all = {
      {},
      {.m = 0},
      {.k = 0, .bias = true},
      {.m = 48, .k = 80, .n = 112, .bias = true},
      {.m = 80, .k = 528, .n = 32, .a = e5m2, .row_padding = 16},
      {.m = 32, .k = 64, .n = 96, .b = e5m2, .type = DType::f16},
      {.m = 96, .k = 160, .n = 64, .a = e5m2, .beta = 1, .type = DType::f32},
      {.m = 4096, .k = 4096, .n = 14336, .real = true, .large = true},
      {.m = 14336,
       .k = 4096,
       .n = 4096,
       .a = e5m2,
       .beta = 1,
       .real = true,
       .large = true,
       .type = DType::f32},
      {.m = 4096, .k = 768, .n = 3072, .bias = true, .real = true},
  };
  for (const Fp8Product& p : all) {
    const double walk = 1 + 0.4 * std::sqrt(static_cast<double>(p.k));
    cases.push_back(case_of(&Table::fp8_gemm, p, tolerance(p.type, walk) + 6 * 0x1p-13, fp8_args));
  }
}

}  // namespace megatron::kernels
