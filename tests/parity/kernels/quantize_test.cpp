// Properties of quantisation that no comparison of back-ends shows.
#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "kernels/case.h"
#include "kernels/instruction_set.h"
#include "kernels/matrix_codes.h"

namespace megatron::kernels::quantize_test {
namespace {

class Quantizing : public ::testing::Test {
 protected:
  Tensor tensor(const Shape& shape, DType type, const std::vector<double>& values) {
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
    if (!values.empty()) copy_from(t, std::span<const double>(values));
    return t;
  }
  std::vector<double> normal(int64_t n, const char* name) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i)
      values.push_back(RandomStream(3, name).normal(static_cast<uint64_t>(i)));
    return values;
  }
  // Rounds by chance, rows `first` on of samples of 4 tokens.
  std::vector<double> rounded(const std::vector<double>& x, int64_t columns, int64_t first) {
    const int64_t rows = std::ssize(x) / columns;
    QuantizeArgs args{.format = LowFormat::e2m1, .stochastic = true};
    args.x = tensor({rows, columns}, DType::f32, x);
    args.scale = tensor({}, DType::f32, {1});
    args.out.values = tensor({rows, columns}, DType::f32, {});
    args.noise = {7, 11, {ids_, {}, first, 4}};
    table(DeviceKind::cpu).quantize(args, runtime_.stream());
    return to_doubles(args.out.values);
  }

  static constexpr int64_t kSamples = 64, kColumns = 256;
  Runtime runtime_{{DeviceKind::cpu}, 2};
  Tensor ids_ = [this] {
    Tensor ids =
        Tensor::empty(runtime_.arena(MemoryClass::activations), {kSamples}, DType::i64, "ids");
    for (int64_t i = 0; i < kSamples; ++i) ids.data<int64_t>()[i] = 100 * i + 5;
    return ids;
  }();
};

// Weights travel as codes (parallel/weight_codes.h): decoded to bf16, a number has its code again.
TEST_F(Quantizing, DecodedNumbersHaveTheirCodes) {
  const MatrixPart part{.columns = 256};
  std::vector<float> scales = {1, 0x1p-100F, 0x1p120F, 448 / 0.0123F};
  for (const double x : normal(200, "scales"))
    scales.push_back(static_cast<float>(std::exp2(9 * x)));
  for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
    const Table& kernels = table(device);
    for (const LowFormat format : {LowFormat::e4m3, LowFormat::e5m2}) {
      std::vector<double> all;
      for (int code = 0; code < 256; ++code)
        if ((code & 127) < facts_of(format).codes) all.push_back(code);
      const auto n = std::ssize(all);
      const Tensor codes = tensor({n}, DType::u8, all), found = tensor({n}, DType::u8, {}),
                   values = tensor({n}, DType::bf16, {});
      for (const float s : scales) {
        if (s > 0x1p112F && format == LowFormat::e5m2) continue;  // below the range of bf16
        const Tensor scale = tensor({}, DType::f32, {s});
        kernels.decode_part({format, part, codes, scale, values}, runtime_.stream());
        kernels.encode_part({format, part, values, scale, found}, runtime_.stream());
        EXPECT_EQ(to_doubles(found), all) << s;
      }
    }
  }
}

// With scales of blocks, which follow from the decoded values, the numbers are the same; of a
// largest element that is rounded down to 224, the scale is another.
TEST_F(Quantizing, DecodedBlocksHaveTheirValues) {
  constexpr int64_t kRows = 140, kWidth = 300, kEdge = 128, kBlocks = 6;
  std::vector<double> x = normal(kRows * kWidth, "x");
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(i % kWidth / kEdge * 9) * 1e-3;
  for (double& value : x) value = std::clamp(value, -225.0, 225.0);
  x[0] = 225;
  const MatrixPart part{.columns = kWidth, .edge = kEdge};
  const Tensor whole = tensor({kRows, kWidth}, DType::bf16, x),
               codes = tensor({kRows * kWidth}, DType::u8, {}),
               maxima = tensor({kBlocks}, DType::f32, std::vector<double>(kBlocks)),
               decoded = tensor({kRows, kWidth}, DType::bf16, {});
  const Tensor flat = whole.view({kRows * kWidth});
  const Table& kernels = table(DeviceKind::cpu);
  kernels.part_amax({flat, part, maxima}, runtime_.stream());
  kernels.encode_part({LowFormat::e4m3, part, flat, maxima, codes}, runtime_.stream());
  kernels.decode_part({LowFormat::e4m3, part, codes, maxima, decoded.view(flat.shape())},
                      runtime_.stream());
  std::vector<std::vector<double>> values, scales;
  for (const Tensor& t : {whole, decoded}) {
    QuantizeArgs args{.rule = BlockScale::power_of_two, .x = t};
    args.out = {.rows = kEdge,
                .columns = kEdge,
                .values = tensor(t.shape(), DType::bf16, {}),
                .scales = tensor({2, 3}, DType::f32, {})};
    kernels.quantize(args, runtime_.stream());
    values.push_back(to_doubles(args.out.values));
    scales.push_back(to_doubles(args.out.scales));
  }
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(values[0], to_doubles(decoded));
  EXPECT_EQ(scales[1][0] * 2, scales[0][0]);
}

// In fp4, products have the same operands from the matrix and from its decoded codes, in a block
// whose scale is 1.6 of the smallest numbers of e4m3, and so is rounded to 2, as well.
TEST_F(Quantizing, DecodedFp4HasItsValues) {
  constexpr int64_t kRows = 50, kWidth = 300, kEdge = 16, kAcross = 19;
  std::vector<double> x = normal(kRows * kWidth, "x");
  double most = 0;
  for (const double value : x) most = std::max(most, std::abs(value));
  for (size_t i = 0; i < x.size(); ++i)
    if (i / kWidth < kEdge && i % kWidth < kEdge) x[i] = 0;
  x[5] = most / 448 * 1.6 * 0x1p-9;
  const MatrixPart part{.columns = kWidth, .edge = kEdge};
  for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
    const Table& kernels = table(device);
    for (const DType type : {DType::bf16, DType::f32}) {
      const Tensor whole = tensor({kRows, kWidth}, type, x),
                   codes = tensor({kRows * kWidth / 2}, DType::u8, {}),
                   maxima = tensor({4, kAcross}, DType::f32, std::vector<double>(4 * kAcross)),
                   amax = tensor({}, DType::f32, {}), scale = tensor({}, DType::f32, {}),
                   decoded = tensor(whole.shape(), type, {});
      const Tensor flat = whole.view({kRows * kWidth});
      kernels.part_amax({flat, part, maxima.view({4 * kAcross})}, runtime_.stream());
      kernels.amax({.x = maxima, .out = {.out = amax}}, runtime_.stream());
      kernels.tensor_scale({.largest = 448 * 6, .amax = amax, .scale = scale}, runtime_.stream());
      kernels.encode_part({LowFormat::e2m1, part, flat, maxima, codes, scale}, runtime_.stream());
      kernels.decode_part({LowFormat::e2m1, part, codes, maxima, decoded.view(flat.shape()), scale},
                          runtime_.stream());
      const auto values = [&](const Tensor& of, const Tensor& known) {
        QuantizeArgs args{.format = LowFormat::e2m1, .rule = BlockScale::nvfp4};
        args.x = of;
        args.scale = scale;
        args.maxima = known;
        args.out = {.rows = kEdge, .columns = kEdge, .values = tensor(of.shape(), type, {})};
        kernels.quantize(args, runtime_.stream());
        return to_doubles(args.out.values);
      };
      EXPECT_EQ(values(decoded, maxima), values(whole, {}));
      EXPECT_NE(values(decoded, {}), values(whole, {}));  // scales that follow from rounded values
      EXPECT_NE(to_doubles(decoded), to_doubles(whole));
    }
  }
}

// The mean of n values that are up with probability p is within 5 standard deviations, 5 sqrt(p (1
// - p) / n), of p.
TEST_F(Quantizing, ByChanceKeepsTheMean) {
  const std::vector<double> points = {0.1, 0.7, 1.125, 2.75, -3.4, -5.9};
  for (const double x : points) {
    const std::vector<double> q =
        rounded(std::vector<double>(4 * kSamples * kColumns, x), kColumns, 0);
    const double size = std::abs(x),
                 spacing = size < 2   ? 0.5
                           : size < 4 ? 1
                                      : 2,
                 low = std::floor(size / spacing) * spacing, p = (size - low) / spacing;
    double sum = 0;
    for (const double v : q) {
      sum += std::abs(v);
      ASSERT_TRUE(std::abs(v) == low || std::abs(v) == low + spacing) << x << " " << v;
      ASSERT_EQ(std::signbit(v), std::signbit(x));
    }
    const auto n = static_cast<double>(q.size());
    EXPECT_NEAR((sum / n - low) / spacing, p, 5 * std::sqrt(p * (1 - p) / n)) << x;
  }
}

// An element's bits depend on its token, not on the rows of the call.
TEST_F(Quantizing, ByChanceDoesNotDependOnTheLayout) {
  const std::vector<double> x = normal(4 * kSamples * kColumns, "x");
  const std::vector<double> all = rounded(x, kColumns, 0);
  const auto half = std::ssize(x) / 2;
  const std::vector<double> later = rounded({x.begin() + half, x.end()}, kColumns, 2 * kSamples);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), all.begin() + half));
  EXPECT_FALSE(std::equal(later.begin(), later.end(), all.begin()));
}

// Products over the rows keep their values, and every row takes part in 16.
TEST_F(Quantizing, RotationKeepsProducts) {
  const int64_t rows = 32, columns = 3;
  const auto rotated = [&](const std::vector<double>& x) {
    HadamardArgs args{tensor({rows, columns}, DType::f32, x),
                      tensor({rows, columns}, DType::f32, {})};
    table(DeviceKind::cpu).hadamard(args, runtime_.stream());
    return to_doubles(args.out);
  };
  const std::vector<double> x = normal(rows * columns, "x"), y = normal(rows * columns, "y"),
                            u = rotated(x), v = rotated(y);
  const auto product = [&](const std::vector<double>& a, const std::vector<double>& b, int64_t i,
                           int64_t j) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
      sum += a[static_cast<size_t>(r * columns + i)] * b[static_cast<size_t>(r * columns + j)];
    return sum;
  };
  for (int64_t i = 0; i < columns; ++i)
    for (int64_t j = 0; j < columns; ++j)
      EXPECT_NEAR(product(u, v, i, j), product(x, y, i, j), 1e-5);
  std::vector<double> one(static_cast<size_t>(rows * columns));
  one[static_cast<size_t>(3 * columns)] = 1;
  const std::vector<double> spread = rotated(one);
  for (int64_t r = 0; r < rows; ++r)
    EXPECT_EQ(std::abs(spread[static_cast<size_t>(r * columns)]), r < 16 ? 0.25 : 0) << r;
}

// The other tests of parity run on the newest instruction set.
TEST(QuantizeCases, AreEqualOnAvx2) {
  limit_instruction_set(InstructionSet::avx2);
  Runtime runtime({DeviceKind::cpu}, 2);
  int run = 0;
  for (const Case& c : cases()) {
    if ((c.kernel != "quantize" && c.kernel != "amax") || c.real || c.dtype == DType::f64) continue;
    const CaseResult result = compare_with_reference(c, runtime);
    EXPECT_LE(result.worst, 1) << c.kernel << " " << c.name << ": " << result.output;
    ++run;
  }
  limit_instruction_set(InstructionSet::newest);
  EXPECT_GT(run, 100);
}

// The scales of operands multiply the sums of a product, before the bias and the result so far, in
// each of the forms that a CPU computes: those of few rows, panels, tiles.
TEST_F(Quantizing, ScalesOfOperandsMultiplySums) {
  const int64_t k = 72, n = 80;
  const auto factor = static_cast<float>((1.0 / 3.7F) * (1.0 / 0.3F));
  for (const auto set : {InstructionSet::newest, InstructionSet::avx2}) {
    limit_instruction_set(set);
    for (const int64_t m : {1, 4, 24, 150}) {
      for (const bool transposed : {false, true}) {
        for (const DType type : {DType::f32, DType::bf16}) {
          const Tensor a = tensor({m, k}, type, normal(m * k, "a")),
                       b = tensor(transposed ? Shape{n, k} : Shape{k, n}, type, normal(n * k, "b")),
                       bias = tensor({n}, type, normal(n, "bias"));
          const auto product = [&](const Tensor& out, float beta, bool scaled) {
            GemmArgs args{.a = a, .b = b, .out = out, .transpose_b = transposed, .beta = beta};
            if (scaled) {
              args.bias = bias;
              args.a_scale = tensor({}, DType::f32, {3.7F});
              args.b_scale = tensor({}, DType::f32, {0.3F});
            }
            table(DeviceKind::cpu).gemm(args, runtime_.stream());
            return to_doubles(out);
          };
          const std::vector<double> sums = product(tensor({m, n}, DType::f32, {}), 0, false),
                                    added = to_doubles(bias), before = normal(m * n, "out");
          for (const float beta : {0.F, 1.F}) {
            const std::vector<double> found =
                product(tensor({m, n}, DType::f32, before), beta, true);
            const Tensor old = tensor({m, n}, DType::f32, before);
            for (size_t i = 0; i < found.size(); ++i) {
              float expected = static_cast<float>(sums[i]) * factor;
              expected += static_cast<float>(added[i % static_cast<size_t>(n)]);
              if (beta == 1) expected += old.data<float>()[i];
              ASSERT_EQ(found[i], expected) << m << " " << transposed << " " << name(type);
            }
          }
        }
      }
    }
  }
  limit_instruction_set(InstructionSet::newest);
}

}  // namespace
}  // namespace megatron::kernels::quantize_test
