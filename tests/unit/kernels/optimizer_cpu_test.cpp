// The host's optimizer steps, operation by operation.
#include <bit>
#include <numeric>

#include "kernels/cpu/kernels.h"
#include "kernels/moment_codes.h"
#include "unit/kernels/cpu_maker.h"

namespace megatron::kernels::cpu {
namespace {

TEST(CpuOptimizer, ScaleClipsAndDivides) {
  Maker maker;
  GradScaleArgs args{maker.values({300, 100}, DType::f64), maker.scalar(4), 1.0, maker.scalar(0),
                     maker.scalar(0)};
  grad_scale(args, maker.stream());
  EXPECT_DOUBLE_EQ(*args.norm.data<double>(), 5);
  EXPECT_DOUBLE_EQ(*args.scale.data<double>(), 0.25 * (1 / (5 + 1e-6)));
  args.max_norm = 0;
  grad_scale(args, maker.stream());
  EXPECT_DOUBLE_EQ(*args.scale.data<double>(), 0.25);
}

// Three steps in f32, operation by operation.
TEST(CpuOptimizer, AdamHasTheBitsOfItsFormula) {
  Maker maker;
  const int64_t n = 37;
  const Tensor w = maker.normal({n}, DType::f32), m = maker.normal({n}, DType::f32),
               v = maker.empty({n}, DType::f32);
  fill({v, 0.25}, maker.stream());
  std::vector<float> want_w = to_floats(w), want_m = to_floats(m), want_v = to_floats(v);
  for (int step = 1; step <= 3; ++step) {
    const Tensor grad = maker.normal({n}, DType::f32);
    AdamArgs args{
        {w, {}},          grad, m, v, maker.scalar(0.01), maker.scalar(0.1), maker.scalar(step),
        maker.scalar(0.5)};
    args.decay = step != 2;
    adam(args, maker.stream());
    const auto c1 = static_cast<float>(1 - std::pow(0.9, step)),
               c2 = static_cast<float>(1 - std::pow(0.999, step));
    const float decay = args.decay ? 0.1f : 0.0f;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const float g = grad.data<float>()[i] * 0.5f;
      want_m[i] = 0.9f * want_m[i] + static_cast<float>(1 - 0.9) * g;
      want_v[i] = 0.999f * want_v[i] + static_cast<float>(1 - 0.999) * g * g;
      want_w[i] -=
          0.01f * (want_m[i] / c1 / (std::sqrt(want_v[i] / c2) + 1e-8f) + decay * want_w[i]);
    }
  }
  EXPECT_EQ(to_floats(w), want_w);
  EXPECT_EQ(to_floats(m), want_m);
  EXPECT_EQ(to_floats(v), want_v);
}

// A bf16 parameter with its remainder takes exactly the values of an f32 parameter.
TEST(CpuOptimizer, SplitMasterIsTheF32Master) {
  Maker maker;
  const int64_t n = 53;
  const Tensor w = maker.normal({n}, DType::f32), buffer = maker.normal({n}, DType::f32),
               other = maker.empty({n}, DType::f32);
  const Tensor value = maker.empty({n}, DType::bf16), remainder = maker.empty({n}, DType::i16);
  copy({buffer, other}, maker.stream());
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(w.data<float>()[i]);
    value.data<bf16>()[i].bits = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    remainder.data<int16_t>()[i] = static_cast<int16_t>(bits & 0xffffu);
  }
  for (int step = 1; step <= 3; ++step) {
    const Tensor grad = maker.normal({n}, DType::f32);
    SgdArgs args{
        {w, {}},         grad, buffer, maker.scalar(0.1), maker.scalar(0.2), maker.scalar(step),
        maker.scalar(1), 0.9};
    sgd(args, maker.stream());
    args.parameter = {value, remainder};
    args.buffer = other;
    sgd(args, maker.stream());
    EXPECT_TRUE(same_bits(buffer, other));
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t high = static_cast<uint32_t>(value.data<bf16>()[i].bits) << 16;
      const uint32_t master =
          high + static_cast<uint32_t>(static_cast<int32_t>(remainder.data<int16_t>()[i]));
      EXPECT_EQ(master, std::bit_cast<uint32_t>(w.data<float>()[i]));
      const double shown = static_cast<double>(static_cast<float>(value.data<bf16>()[i]));
      EXPECT_LE(std::abs(shown / static_cast<double>(w.data<float>()[i]) - 1), 1.0 / 256);
    }
  }
}

TEST(CpuOptimizer, SgdWithoutMomentum) {
  Maker maker;
  const Tensor w = maker.values({1, 2, 3}, DType::f32), grad = maker.values({2, 4, 8}, DType::f32);
  sgd({{w, {}},
       grad,
       {},
       maker.scalar(0.5),
       maker.scalar(0.25),
       maker.scalar(1),
       maker.scalar(0.5),
       0,
       true},
      maker.stream());
  EXPECT_EQ(to_doubles(w), (Doubles{0.375, 0.75, 0.625}));
}

// A number of the formats keeps its code whatever is added below its bits, numbers out of range
// become the nearest one, and of those in between a share is rounded up.
TEST(CpuOptimizer, CodesOfMomentsAreThoseOfTheirNumbers) {
  const MomentDither none{0, 0}, most{(1U << 21) - 1, (1U << 20) - 1};
  for (uint32_t code = 0; code < 256; ++code) {
    for (const MomentDither dither : {none, most}) {
      EXPECT_EQ(root_code(root_of(code), dither), code);
      if (code % 128 == kRatioNan || code == 128) continue;
      EXPECT_EQ(ratio_code(ratio_of(code) * 0.25f, 0.25f, dither), code);
      EXPECT_EQ(ratio_of(code) * 16, decode(LowFormat::e4m3, static_cast<uint8_t>(code)));
    }
  }
  EXPECT_EQ(root_of(1), 1.25f * 0x1p-48f);
  EXPECT_EQ(root_of(255), 1.75f * 0x1p15f);
  EXPECT_EQ(root_code(1e-30f, none), 1u);
  EXPECT_EQ(root_code(1e9f, most), 255u);
  EXPECT_EQ(ratio_code(30, 1, none), 0x7eu);
  EXPECT_EQ(ratio_code(-30, 1, most), 0xfeu);
  EXPECT_EQ(ratio_code(1, 0, most), 0u);
  EXPECT_TRUE(std::isnan(ratio_of(ratio_code(NAN, 1, none))));
  int roots = 0, ratios = 0, small = 0;
  for (int step = 1; step <= 1000; ++step) {
    const MomentDither dither = MomentDither::of(step);
    roots += root_code(1 + 0.1f * 0.25f, dither) > root_code(1, none) ? 1 : 0;
    ratios += ratio_code(1 + 0.3f * 0.125f, 1, dither) > ratio_code(1, 1, none) ? 1 : 0;
    small += ratio_code(0.7f * 0x1p-13f, 1, dither) > 0 ? 1 : 0;
  }
  EXPECT_NEAR(roots, 100, 3);
  EXPECT_NEAR(ratios, 300, 3);
  EXPECT_NEAR(small, 700, 3);
}

// With beta2 = 0.999, moments of 8 bits have the size of those of f32 after thousands of steps.
// Rounded to nearest, roots would be 0.29 times as large.
TEST(CpuOptimizer, MomentsOfEightBitsFollowThoseOfF32) {
  Maker maker;
  const int64_t n = 257;
  std::vector<AdamArgs> runs;
  for (const DType type : {DType::f32, DType::u8}) {
    AdamArgs args{{maker.empty({n}, DType::f32), {}},
                  maker.empty({n}, DType::f32),
                  maker.empty({n}, type),
                  maker.empty({n}, type),
                  maker.scalar(1),
                  maker.scalar(0),
                  maker.scalar(1),
                  maker.scalar(1)};
    for (const Tensor& t : {args.parameter.value, args.exp_avg, args.exp_avg_sq})
      fill({t, 0}, maker.stream());
    runs.push_back(args);
  }
  for (int step = 1; step <= 3000; ++step) {
    const Tensor grad = maker.normal({n}, DType::f32);
    for (int64_t i = 0; i < n; ++i)  // sizes of 1e-6 to 1
      grad.data<float>()[i] *= std::pow(10.0f, -6 * static_cast<float>(i) / n);
    for (AdamArgs& args : runs) {
      args.grad = grad;
      args.step = maker.scalar(step);
      adam(args, maker.stream());
    }
  }
  double squares = 0, roots = 0, averages = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float m = runs[0].exp_avg.data<float>()[i], v = runs[0].exp_avg_sq.data<float>()[i],
                root = root_of(runs[1].exp_avg_sq.data<uint8_t>()[i]);
    roots += root / std::sqrt(v);
    const float error = ratio_of(runs[1].exp_avg.data<uint8_t>()[i]) * root / std::sqrt(v);
    averages += std::pow(error - m / std::sqrt(v), 2);
    squares += m * m / v;
  }
  EXPECT_NEAR(roots / n, 1, 0.1);
  EXPECT_LT(std::sqrt(averages / squares), 0.1);
}

}  // namespace
}  // namespace megatron::kernels::cpu
