// fp16 on the host: conversions, and kernels that run in f32.
#include <bit>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/table.h"
#include "unit/kernels/cpu_maker.h"
#include "unit/kernels/instruction_sets.h"

namespace megatron::kernels::cpu {
namespace {

const Table& host() { return table(DeviceKind::cpu); }

TEST(CpuF16, EveryValueWidensExactly) {
  for_each_target([](int64_t) {
    Maker maker(1);
    const int64_t count = 65536;
    const Tensor x = maker.empty({count}, DType::f16), wide = maker.empty({count}, DType::f32);
    const Tensor back = maker.empty({count}, DType::f16);
    for (int64_t i = 0; i < count; ++i) x.data<f16>()[i].bits = static_cast<uint16_t>(i);
    copy({x, wide}, maker.stream());
    copy({wide, back}, maker.stream());
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      const f16 value = x.data<f16>()[i];
      const auto wanted = std::bit_cast<uint32_t>(static_cast<float>(value));
      wrong += std::bit_cast<uint32_t>(wide.data<float>()[i]) != wanted;
      wrong += back.data<f16>()[i].bits != f16(static_cast<float>(value)).bits;
    }
    EXPECT_EQ(wrong, 0);
  });
}

TEST(CpuF16, RoundsAsTheFormatDoes) {
  Doubles values = {0.0,         -0.0,     1.0,       65504.0, 65519.9,   65520.0,   -65520.0,
                    1e30,        0x1p-14,  0x1p-24,   0x1p-25, 0x1.8p-25, 0x1.002p0, 0x1.006p0,
                    0x1.ffcp-15, INFINITY, -INFINITY, NAN,     0x1p-126,  0x1p-149};
  for (int i = 0; i < 3000; ++i) values.push_back(std::ldexp(1 + i / 3000.0, i % 60 - 40));
  for_each_target([&](int64_t) {
    Maker maker(1);
    const Tensor x = maker.values(values, DType::f32), out = maker.empty(x.shape(), DType::f16);
    copy({x, out}, maker.stream());
    for (int64_t i = 0; i < x.elements(); ++i)
      EXPECT_EQ(out.data<f16>()[i].bits, f16(x.data<float>()[i]).bits) << at(values, i);
  });
}

TEST(CpuF16, OverflowGivesInfinity) {
  Maker maker;
  const Tensor a = maker.values({300, 300}, DType::f16).view({1, 2}),
               b = maker.values({300, 300}, DType::f16).view({2, 1});
  const Tensor out = maker.empty({1, 1}, DType::f16), wide = maker.empty({1, 1}, DType::f32);
  host().gemm({.a = a, .b = b, .out = out}, maker.stream());
  host().gemm({.a = a, .b = b, .out = wide}, maker.stream());
  EXPECT_EQ(to_doubles(out)[0], INFINITY);
  EXPECT_EQ(to_doubles(wide)[0], 180000);
}

// A token has the same bits alone as in a training batch.
TEST(CpuF16, ForwardProductsKeepTheirBitsForAnyNumberOfRows) {
  Maker maker;
  const Tensor x = maker.normal({70, 48}, DType::f16), w = maker.normal({33, 48}, DType::f16);
  const Tensor all = maker.empty({70, 33}, DType::f16), one = maker.empty({1, 33}, DType::f16);
  host().gemm({.a = x, .b = w, .out = all, .transpose_b = true}, maker.stream());
  for (const int64_t row : {0, 5, 69}) {
    host().gemm({.a = x.slice(0, row, 1), .b = w, .out = one, .transpose_b = true}, maker.stream());
    EXPECT_TRUE(same_bits(one, all.slice(0, row, 1)));
  }
}

// The norm of a layer, in forward and in backward, uses the sum as it is stored.
TEST(CpuF16, StatisticsAreOfTheSumAsStored) {
  Maker maker;
  const Tensor x = maker.normal({9, 40}, DType::f16), residual = maker.normal({9, 40}, DType::f16),
               weight = maker.normal({40}, DType::f16);
  const auto out = [&](DType type) { return maker.empty({9, 40}, type); };
  AddNormArgs fused{.x = x, .residual = residual, .weight = weight};
  fused.sum = out(DType::f16);
  fused.normed = out(DType::f16);
  fused.rstd = maker.empty({9}, DType::f32);
  host().add_rms_norm(fused, maker.stream());
  AddNormArgs alone{.x = fused.sum, .weight = weight};
  alone.normed = out(DType::f16);
  alone.rstd = maker.empty({9}, DType::f32);
  host().add_rms_norm(alone, maker.stream());
  EXPECT_TRUE(same_bits(fused.rstd, alone.rstd));
  EXPECT_TRUE(same_bits(fused.normed, alone.normed));
}

TEST(CpuF16, AMatrixThatIsRepeatedIsWidenedOnce) {
  Maker maker;
  const std::array<int64_t, 3> strides{0, 64, 1};
  const Tensor a = maker.normal({50, 3, 64}, DType::f16);
  const Tensor b = maker.normal({64, 64}, DType::f16).as_strided({50, 64, 64}, strides);
  const Tensor out = maker.empty({50, 3, 64}, DType::f16);
  host().gemm({.a = a, .b = b, .out = out}, maker.stream());
  EXPECT_LT(maker.stream().scratch().high_water(), 50 * 64 * 64 * 4);
}

TEST(CpuF16, MetaAsksForTheSameScratch) {
  const auto mark = [](DeviceKind kind) {
    Runtime runtime({kind, 0}, 2);
    const auto make = [&](Shape shape, DType type) {
      Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "x");
      table(kind).fill({.out = t, .value = 1}, runtime.stream());
      return t;
    };
    const Tensor x = make({12, 64}, DType::f16), w = make({64}, DType::f16);
    AddNormBackwardArgs args{.dnormed = x, .sum = x, .weight = w};
    args.rstd = make({12}, DType::f32);
    args.dsum = make({12, 64}, DType::f16);
    args.dweight = {make({64}, DType::f32), 0};
    table(kind).add_rms_norm_backward(args, runtime.stream());
    return runtime.stream().scratch().high_water();
  };
  EXPECT_GE(mark(DeviceKind::cpu), 3 * 12 * 64 * 4 + 64 * 4);
  EXPECT_EQ(mark(DeviceKind::cpu), mark(DeviceKind::meta));
}

}  // namespace
}  // namespace megatron::kernels::cpu
