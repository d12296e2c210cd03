#include "plan/assumed_time.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

class AssumedTimeTest : public ::testing::Test {
 protected:
  AssumedTimeTest() { runtime_.stream().watch(&recorder_); }
  Tensor tensor(Shape shape, DType type = DType::bf16) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "t");
  }
  const kernels::Table& kernels() { return kernels::table(runtime_.stream()); }
  void product(int64_t m, int64_t n, int64_t k, DType type = DType::bf16) {
    kernels().gemm(
        {.a = tensor({m, k}, type), .b = tensor({k, n}, type), .out = tensor({m, n}, type)},
        runtime_.stream());
  }
  void weight_gradient(int64_t tokens, int64_t out, int64_t in, float beta) {
    kernels().gemm({.a = tensor({tokens, out}),
                    .b = tensor({tokens, in}),
                    .out = tensor({out, in}, DType::f32),
                    .transpose_a = true,
                    .beta = beta},
                   runtime_.stream());
  }
  void activation(int64_t tokens, int64_t width) {
    kernels().activation({.x = tensor({tokens, width}), .out = tensor({tokens, width})},
                         runtime_.stream());
  }
  void attention(int64_t length, int64_t head_size) {
    const Tensor q = tensor({1, length, 2, head_size});
    kernels().attention(
        {.q = q, .k = q, .v = q, .out = q, .lse = tensor({1, 2, length}, DType::f32)},
        runtime_.stream());
  }
  static double seconds(const std::optional<AssumedTime>& time, const std::string& name) {
    double sum = -1;
    for (const AssumedItem& item : time->items)
      if (item.name == name) sum = item.seconds;
    return sum;
  }

  Runtime runtime_{{DeviceKind::meta, 0}, 1};
  Recorder recorder_;
};

TEST_F(AssumedTimeTest, ProductsAreOfLayersOrOfTheVocabulary) {
  product(4096, 8192, 4096);
  product(4096, 1000, 4096);
  product(512, 20000, 4096);
  const StepWork work = recorder_.take();
  const auto time =
      assumed_time(work, work, {.micro_batches = 2, .vocabulary = 40000, .tensor_ranks = 2});
  ASSERT_TRUE(time.has_value());
  const double large = 2.0 * 4096 * 8192 * 4096 / 740e12, small = 2.0 * 4096 * 1000 * 4096 / 715e12;
  EXPECT_DOUBLE_EQ(seconds(time, "linear layers"), (large + small) / 2);
  EXPECT_DOUBLE_EQ(seconds(time, "output layer"), 2.0 * 512 * 20000 * 4096 / 715e12 / 2);
  EXPECT_EQ(time->items.size(), 2u);
  EXPECT_DOUBLE_EQ(time->step_seconds, 2 * time->micro_batch_seconds);
}

TEST_F(AssumedTimeTest, ProductsOfFp8AreFaster) {
  using kernels::ScaleLayout;
  const auto codes = [&](int64_t rows, ScaleLayout layout) {
    kernels::CodedOperand operand{.layout = layout, .codes = tensor({rows, 4096}, DType::u8)};
    if (layout == ScaleLayout::tensor) operand.tensor_scale = tensor({}, DType::f32);
    else operand.scales = tensor(kernels::scales_shape(layout, rows, 4096), DType::f32);
    return operand;
  };
  const auto multiply = [&](int64_t n, ScaleLayout a, ScaleLayout b) {
    kernels().coded_gemm({.a = codes(4096, a), .b = codes(n, b), .out = tensor({4096, n})},
                         runtime_.stream());
  };
  for (const int64_t n : {8192, 1024}) multiply(n, ScaleLayout::tensor, ScaleLayout::tensor);
  multiply(8192, ScaleLayout::vectors_128, ScaleLayout::squares_128);
  kernels().encode_operand(
      {.x = tensor({4096, 4096}), .transposed = true, .out = codes(4096, ScaleLayout::tensor)},
      runtime_.stream());
  const StepWork work = recorder_.take();
  const auto time = assumed_time(work, work, {});
  const double large = 2.0 * 4096 * 8192 * 4096 / 1300e12,
               small = 2.0 * 4096 * 1024 * 4096 / 1150e12;
  const double of_blocks = 2.0 * 4096 * 8192 * 4096 / 1150e12;
  EXPECT_DOUBLE_EQ(seconds(time, "linear layers"), large + small + of_blocks);
  EXPECT_DOUBLE_EQ(seconds(time, "quantization"), (3.0 * 4096 * 4096 + 4) / 4.2e12);
}

// With few tokens the product takes less time than the transfers, and the remainder is exposed.
TEST_F(AssumedTimeTest, GradientsThatAreAddedUpMoveTheirSums) {
  const auto accumulation = [&](int64_t tokens, float beta) {
    weight_gradient(tokens, 4096, 8192, beta);
    const StepWork work = recorder_.take();
    return seconds(assumed_time(work, work, {}), "gradient accumulation");
  };
  const double sums = 4096.0 * 8192 * 4, operands = 64 * (4096.0 + 8192) * 2;
  EXPECT_DOUBLE_EQ(accumulation(4096, 1), 2 * sums / 4.2e12 / 2);
  EXPECT_DOUBLE_EQ(accumulation(4096, 0), sums / 4.2e12 / 2);
  EXPECT_DOUBLE_EQ(accumulation(64, 1),
                   (2 * sums + operands) / 4.2e12 - 2.0 * 64 * 4096 * 8192 / 715e12);
}

TEST_F(AssumedTimeTest, AttentionGoesByLengthAndHeads) {
  const auto rate = [&](int64_t length, int64_t head_size) {
    attention(length, head_size);
    const StepWork work = recorder_.take();
    const auto time = assumed_time(work, work, {});
    EXPECT_EQ(time->items.size(), 1u);
    return *time->items.at(0).flops_per_second / 1e12;
  };
  EXPECT_DOUBLE_EQ(rate(1024, 128), 484);
  EXPECT_DOUBLE_EQ(rate(4096, 128), 591);
  EXPECT_DOUBLE_EQ(rate(10000, 96), 644);
  EXPECT_DOUBLE_EQ(rate(4096, 64), 400);
}

TEST_F(AssumedTimeTest, RecomputeIsWhatComesOnTop) {
  activation(1024, 1000);
  const StepWork keeping = recorder_.take();
  activation(1024, 1000);
  activation(1024, 1000);
  const auto time = assumed_time(recorder_.take(), keeping, {.stretch = 1.5});
  const double once = 2 * 1024.0 * 1000 * 2 / 4.2e12;
  EXPECT_DOUBLE_EQ(seconds(time, "activation"), once);
  EXPECT_DOUBLE_EQ(seconds(time, "recompute"), once);
  EXPECT_DOUBLE_EQ(time->micro_batch_seconds, 2 * once);
  EXPECT_DOUBLE_EQ(time->step_seconds, 3 * once);
}

TEST_F(AssumedTimeTest, ProductsOfExpertsAreSmall) {
  const auto experts = [&](int64_t rows, int64_t count) {
    kernels().grouped_gemm({.a = tensor({rows, 2048}),
                            .b = tensor({count, 2048, 1024}),
                            .offsets = tensor({count + 1}, DType::i32),
                            .out = tensor({rows, 1024})},
                           runtime_.stream());
    const StepWork work = recorder_.take();
    return seconds(assumed_time(work, work, {}), "experts");
  };
  EXPECT_DOUBLE_EQ(experts(65536, 8), 2.0 * 65536 * 2048 * 1024 / 715e12);
  // With few rows per expert, the time is that of reading the weights.
  EXPECT_NEAR(experts(64, 128), 128 * 2.0 * 2048 * 1024 / 4.2e12, 1e-6);
}

// Forward reads bf16; both operands of backward are f32.
TEST_F(AssumedTimeTest, ProductsOfRoutersAreInFp32) {
  const auto backward = [&](int64_t experts) {
    kernels().gemm({.a = tensor({4096, experts}, DType::f32),
                    .b = tensor({experts, 2048}, DType::f32),
                    .out = tensor({4096, 2048}, DType::f32)},
                   runtime_.stream());
    kernels().gemm({.a = tensor({4096, experts}, DType::f32),
                    .b = tensor({4096, 2048}, DType::f32),
                    .out = tensor({experts, 2048}, DType::f32),
                    .transpose_a = true},
                   runtime_.stream());
  };
  backward(64);
  backward(1);  // a shared expert's gate
  const StepWork work = recorder_.take();
  const double computing = 2 * 2.0 * 4096 * 2048 * 64 / 50e12;
  const auto time = assumed_time(work, work, {.experts = 64});
  ASSERT_TRUE(time.has_value());
  EXPECT_GE(seconds(time, "experts"), computing);
  EXPECT_EQ(seconds(time, "linear layers"), -1);  // there are none
  EXPECT_FALSE(assumed_time(work, work, {.experts = 32}).has_value());
  EXPECT_FALSE(assumed_time(work, work, {}).has_value());
}

TEST_F(AssumedTimeTest, NothingIsAssumedOfSumsInF64) {
  kernels().gemm({.a = tensor({4096, 2048}),
                  .b = tensor({64, 2048}),
                  .out = tensor({4096, 64}, DType::f32),
                  .transpose_b = true,
                  .double_sums = true},
                 runtime_.stream());
  const StepWork work = recorder_.take();
  EXPECT_FALSE(assumed_time(work, work, {.experts = 64}).has_value());
}

TEST_F(AssumedTimeTest, NothingIsAssumedOfFp32) {
  product(64, 64, 64, DType::f32);
  const StepWork work = recorder_.take();
  EXPECT_FALSE(assumed_time(work, work, {}).has_value());
}

}  // namespace
}  // namespace megatron::plan
