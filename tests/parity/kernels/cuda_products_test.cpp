// Which products CUDA hands to cuBLASLt with their epilogues, and which order of sums it may take.
// What they compute is in the Cases.
#include <gtest/gtest.h>

#include <functional>

#include "device/wing.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

// cuBLASLt's numbers.
enum Epilogue : uint32_t {
  kDefault = 1,
  kBias = 4,
  kGelu = 32,
  kGeluBias = 36,
  kGeluAux = 160,
  kGeluAuxBias = 164,
  kGeluGradient = 192,
  kBiasGradientOfB = 512,
};
enum Reduction : uint32_t { kWhole = 0, kInPlace = 1, kInOrder = 2 };

class CudaProducts : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(cuda_state().wing, nullptr) << cuda_state().why_not;
    if (cuda_wing().devices().front().name != "CUDA shim on the CPU")
      GTEST_SKIP() << "cuBLASLt does not tell what it was asked";
  }
  Tensor zeros(Shape shape, DType type) {
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
    table(DeviceKind::cuda).fill({.out = t, .value = 0}, runtime_.stream());
    return t;
  }
  // How many products of an epilogue and reduction a call queues.
  int64_t queued(const GemmArgs& args, uint32_t epilogue, uint32_t reduction = kWhole) {
    auto* const count =
        reinterpret_cast<int64_t (*)(uint32_t, uint32_t)>(cuda_symbol("shim_products"));
    const int64_t before = count(epilogue, reduction);
    table(DeviceKind::cuda).gemm(args, runtime_.stream());
    runtime_.stream().synchronize();
    return count(epilogue, reduction) - before;
  }
  GemmArgs up(DType type, int64_t inner) {
    return {.a = zeros({16, 24}, type),
            .b = zeros({inner, 24}, type),
            .out = zeros({16, inner}, type),
            .transpose_b = true,
            .bias = zeros({inner}, type),
            .epilogue = megatron::kernels::Epilogue::gelu,
            .aux = zeros({16, inner}, type)};
  }
  GemmArgs weight_gradient(DType type, float beta) {
    return {.a = zeros({16, 24}, type),
            .b = zeros({16, 8}, type),
            .out = zeros({24, 8}, DType::f32),
            .transpose_a = true,
            .beta = beta,
            .bias_gradient = {zeros({24}, DType::f32), beta}};
  }

  Runtime runtime_{{DeviceKind::cuda}, 1};
};

TEST_F(CudaProducts, EpiloguesAreTheLibrarys) {
  for (const DType type : {DType::bf16, DType::f16}) {
    GemmArgs args = up(type, 40);
    EXPECT_EQ(queued(args, kGeluAuxBias), 1) << name(type);
    args.bias = {};
    EXPECT_EQ(queued(args, kGeluAux), 1) << name(type);
    args.aux = {};
    EXPECT_EQ(queued(args, kGelu), 1) << name(type);
    args.bias = zeros({40}, type);
    EXPECT_EQ(queued(args, kGeluBias), 1) << name(type);

    args = {.a = zeros({16, 24}, type),
            .b = zeros({24, 40}, type),
            .out = zeros({16, 40}, type),
            .epilogue = megatron::kernels::Epilogue::gelu_gradient,
            .aux = zeros({16, 40}, type)};
    EXPECT_EQ(queued(args, kGeluGradient), 1) << name(type);
    for (const float beta : {0.0f, 1.0f})
      EXPECT_EQ(queued(weight_gradient(type, beta), kBiasGradientOfB), 1) << name(type);
  }
}

TEST_F(CudaProducts, InFp32GeluIsOurOwn) {
  EXPECT_EQ(queued(up(DType::f32, 40), kBias), 1);
  for (const float beta : {0.0f, 1.0f})
    EXPECT_EQ(queued(weight_gradient(DType::f32, beta), kBiasGradientOfB), 1);
}

TEST_F(CudaProducts, WhatTheLibraryRefusesIsMadeOfParts) {
  EXPECT_EQ(queued(up(DType::bf16, 37), kBias), 1) << "rows of aux that are no multiple of 8";
  GemmArgs args = up(DType::bf16, 40);
  args.aux = zeros({16 * 40 + 3}, DType::bf16).slice(0, 3, 16 * 40).view({16, 40});
  EXPECT_EQ(queued(args, kBias), 1) << "6 bytes behind a block";
  args = weight_gradient(DType::bf16, 0);
  args.out = zeros({24, 8}, DType::bf16);
  EXPECT_EQ(queued(args, kDefault), 1) << "a bias's gradient of another type than out";
  args = weight_gradient(DType::bf16, 0);
  args.bias = zeros({8}, DType::f32);
  EXPECT_EQ(queued(args, kBias), 1) << "a bias and the gradient of one";
}

TEST_F(CudaProducts, SumsComeInAnyOrderOnlyWhereThatIsAllowed) {
  const GemmArgs deep{.a = zeros({8, 512}, DType::bf16),
                      .b = zeros({512, 16}, DType::bf16),
                      .out = zeros({8, 16}, DType::bf16)};
  EXPECT_EQ(queued(deep, kDefault, kInOrder), 1);
  runtime_.stream().allow_nondeterministic(true);
  EXPECT_EQ(queued(deep, kDefault, kInPlace), 1);
  runtime_.stream().allow_nondeterministic(false);
  EXPECT_EQ(queued(deep, kDefault, kInOrder), 1) << "plans of the one are not those of the other";
}

}  // namespace
}  // namespace megatron::kernels
