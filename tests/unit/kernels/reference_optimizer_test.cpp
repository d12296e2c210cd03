// Compares the reference's optimizer steps with a scalar computation.
#include <bit>

#include "support.h"

namespace megatron::kernels {
namespace {

class ReferenceOptimizer : public ReferenceTest {
 protected:
  AdamArgs adam(DType type) {
    const DType wide = accumulator(type);
    AdamArgs args{.parameter = {random("w", {40}, type), {}},
                  .grad = random("g", {40}, wide, 50),
                  .exp_avg = random("m", {40}, wide, 0.1),
                  .exp_avg_sq = make({40}, wide),
                  .lr = scalar(0.01),
                  .weight_decay = scalar(0.1),
                  .step = scalar(3),
                  .scale = scalar(0.02)};
    std::vector<double> squares = to_doubles(args.exp_avg);
    for (double& value : squares) value *= value;
    copy_from(args.exp_avg_sq, squares);
    return args;
  }
  // fp32 masters and the parameter that holds them.
  MasterWeight split(const std::vector<float>& masters) {
    const auto n = static_cast<int64_t>(masters.size());
    const MasterWeight weight{make({n}, DType::bf16), make({n}, DType::i16)};
    for (size_t i = 0; i < masters.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(masters[i]), high = (bits + 0x8000u) >> 16;
      weight.value.data<bf16>()[i].bits = static_cast<uint16_t>(high);
      weight.remainder.data<int16_t>()[i] = static_cast<int16_t>(bits - (high << 16));
    }
    return weight;
  }
  static std::vector<float> join(const MasterWeight& weight) {
    std::vector<float> masters;
    for (int64_t i = 0; i < weight.value.elements(); ++i) {
      const uint32_t high = uint32_t{weight.value.data<bf16>()[i].bits} << 16;
      masters.push_back(std::bit_cast<float>(
          high + static_cast<uint32_t>(int32_t{weight.remainder.data<int16_t>()[i]})));
    }
    return masters;
  }
};

TEST_F(ReferenceOptimizer, AdamIsTheFormula) {
  for (const bool decay : {true, false}) {
    AdamArgs args = adam(DType::f64);
    args.decay = decay;
    const std::vector<double> w = to_doubles(args.parameter.value), g = to_doubles(args.grad),
                              m = to_doubles(args.exp_avg), v = to_doubles(args.exp_avg_sq);
    kernels().adam(args, stream());
    for (size_t i = 0; i < w.size(); ++i) {
      const double grad = g[i] * 0.02, m1 = 0.9 * m[i] + 0.1 * grad,
                   v1 = 0.999 * v[i] + 0.001 * grad * grad;
      const double update =
          m1 / (1 - 0.9 * 0.9 * 0.9) / (std::sqrt(v1 / (1 - std::pow(0.999, 3))) + 1e-8);
      EXPECT_NEAR(to_doubles(args.exp_avg)[i], m1, 1e-15);
      EXPECT_NEAR(to_doubles(args.exp_avg_sq)[i], v1, 1e-15);
      EXPECT_NEAR(to_doubles(args.parameter.value)[i],
                  w[i] - 0.01 * (update + (decay ? 0.1 : 0) * w[i]), 1e-12);
    }
  }
}

TEST_F(ReferenceOptimizer, SgdIsTheFormula) {
  for (const double step : {1.0, 2.0}) {
    const Tensor w = of({2}, {1, -2}), g = of({2}, {10, 20}), buffer = of({2}, {0.5, 0.25});
    SgdArgs args{.parameter = {w, {}},
                 .grad = g,
                 .buffer = buffer,
                 .lr = scalar(0.1),
                 .weight_decay = scalar(0.5),
                 .step = scalar(step),
                 .scale = scalar(0.1),
                 .momentum = 0.8};
    kernels().sgd(args, stream());
    const double first = 1 + 0.5 + (step == 1 ? 0 : 0.8 * 0.5),
                 second = 2 - 1 + (step == 1 ? 0 : 0.8 * 0.25);
    expect_near(buffer, {first, second}, 1e-15);
    expect_near(w, {1 - 0.1 * first, -2 - 0.1 * second}, 1e-15);
  }
  const Tensor w = of({1}, {1});
  kernels().sgd({.parameter = {w, {}},
                 .grad = of({1}, {3}),
                 .buffer = {},
                 .lr = scalar(0.1),
                 .weight_decay = scalar(0.5),
                 .step = scalar(5),
                 .scale = scalar(1),
                 .momentum = 0,
                 .decay = false},
                stream());
  expect_near(w, {0.7}, 1e-15);
}

TEST_F(ReferenceOptimizer, ZeroStepKeepsEveryMasterBit) {
  std::vector<float> masters{0.0f,
                             -0.0f,
                             1.0f,
                             -1.0f,
                             std::bit_cast<float>(0x3f808000u),
                             std::bit_cast<float>(0xbf808000u),
                             std::bit_cast<float>(0x3f807fffu),
                             std::bit_cast<float>(0x3f808001u),
                             1e-40f,
                             3e38f};
  const RandomStream stream_of_bits(1, "masters");
  for (uint64_t i = 0; i < 500; ++i)
    masters.push_back(static_cast<float>(stream_of_bits.normal(i)));
  const MasterWeight weight = split(masters);
  const std::vector<float> joined = join(weight);
  for (size_t i = 0; i < masters.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(joined[i]), std::bit_cast<uint32_t>(masters[i]));
  }
  const auto n = static_cast<int64_t>(masters.size());
  const Tensor zero = of({n}, std::vector<double>(masters.size(), 0), DType::f32);
  kernels().sgd({.parameter = weight,
                 .grad = zero,
                 .buffer = {},
                 .lr = scalar(0),
                 .weight_decay = scalar(0),
                 .step = scalar(1),
                 .scale = scalar(1)},
                stream());
  const std::vector<float> after = join(weight);
  for (size_t i = 0; i < masters.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(after[i]), std::bit_cast<uint32_t>(masters[i])) << i;
  }
}

TEST_F(ReferenceOptimizer, Bf16StepsAreTheFp32StepsOfTheMaster) {
  AdamArgs wide = adam(DType::f32), narrow = adam(DType::f32);
  narrow.parameter = split(to_floats(wide.parameter.value));
  for (int step = 1; step <= 5; ++step) {
    wide.step = narrow.step = scalar(step);
    kernels().adam(wide, stream());
    kernels().adam(narrow, stream());
  }
  EXPECT_EQ(join(narrow.parameter), to_floats(wide.parameter.value));
  // The value alone is the rounded master.
  for (size_t i = 0; i < 40; ++i) {
    const float master = to_floats(wide.parameter.value)[i];
    EXPECT_NEAR(to_floats(narrow.parameter.value)[i], master, std::abs(master) * 0x1p-8f);
  }
}

TEST_F(ReferenceOptimizer, GradScaleDividesAndClips) {
  const Tensor norm = make({}), scale = make({}), partials = of({2}, {9, 16}), divisor = scalar(2);
  kernels().grad_scale({partials, divisor, 0, norm, scale}, stream());
  EXPECT_EQ(to_doubles(norm)[0], 2.5);
  EXPECT_EQ(to_doubles(scale)[0], 0.5);
  kernels().grad_scale({partials, divisor, 3, norm, scale}, stream());
  EXPECT_EQ(to_doubles(scale)[0], 0.5);
  kernels().grad_scale({partials, divisor, 1, norm, scale}, stream());
  EXPECT_NEAR(to_doubles(scale)[0], 0.5 / (2.5 + 1e-6), 1e-15);
  EXPECT_EQ(to_doubles(norm)[0], 2.5);
}

}  // namespace
}  // namespace megatron::kernels
