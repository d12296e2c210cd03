// The host's optimizer steps, operation by operation.
#include <bit>

#include "kernels/cpu/kernels.h"
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

}  // namespace
}  // namespace megatron::kernels::cpu
