#include "plan/recorder.h"

#include <gtest/gtest.h>

#include "plan/step_time.h"

namespace megatron::plan {
namespace {

class Recording : public ::testing::Test {
 protected:
  Recording() { runtime_.stream().watch(&recorder_); }
  Tensor tensor(Shape shape, DType type = DType::f32) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "t");
  }
  void multiply(int64_t m, int64_t n, int64_t k, bool transpose) {
    kernels::table(runtime_.stream())
        .gemm({.a = tensor({m, k}),
               .b = transpose ? tensor({n, k}) : tensor({k, n}),
               .out = tensor({m, n}),
               .transpose_b = transpose},
              runtime_.stream());
  }

  Runtime runtime_{{DeviceKind::meta, 0}, 2};
  Recorder recorder_;
};

TEST_F(Recording, AlikeCallsAreOneItem) {
  for (int i = 0; i < 3; ++i) multiply(8, 8, 8, true);
  multiply(8, 8, 8, false);  // the same shapes, another product
  multiply(8, 16, 8, true);
  const StepWork work = recorder_.take();
  ASSERT_EQ(work.kernels.size(), 3u);
  EXPECT_EQ(work.kernels[0].calls, 3);
  EXPECT_EQ(work.kernels[1].calls, 1);
  const auto sums = kernel_work(work);
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].calls, 5);
  EXPECT_EQ(sums[0].cost.flops, 2.0 * 8 * 8 * (4 * 8 + 16));
}

TEST_F(Recording, NoMemoryIsKept) {
  multiply(64, 64, 64, true);
  EXPECT_EQ(runtime_.arena(MemoryClass::activations).in_use(), 0);
}

TEST_F(Recording, SharedMemoryIsSeen) {
  const Tensor all = tensor({4, 8});
  kernels::table(runtime_.stream())
      .add({.a = all.slice(0, 0, 2), .b = all.slice(0, 2, 2), .out = all.slice(0, 0, 2)},
           runtime_.stream());
  const StepWork work = recorder_.take();
  const auto& operands = work.kernels.at(0).operands;
  EXPECT_EQ(operands[0].offset, 0);
  EXPECT_EQ(operands[1].storage, 0);
  EXPECT_EQ(operands[1].offset, 64);
  EXPECT_EQ(operands[2].offset, 0);
}

TEST_F(Recording, MicroBatchesAfterTheThirdAreLikeIt) {
  const auto step = [&](int micro_batches) {
    multiply(4, 4, 4, true);  // once a step
    for (int i = 0; i < micro_batches; ++i) multiply(8, 8, 8, true);
    return recorder_.take();
  };
  const StepWork two = step(2), three = step(3);
  const StepWork ten = extended(two, three, 2, 3, 10);
  EXPECT_EQ(ten.kernels[0].calls, 1);
  EXPECT_EQ(ten.kernels[1].calls, 10);
}

TEST_F(Recording, TimeIsThatOfItsCalls) {
  for (int i = 0; i < 5; ++i) multiply(64, 64, 64, true);
  const StepWork work = recorder_.take();
  const auto time = estimate_step_time(work, {.device = {DeviceKind::cpu, 0}, .host_seconds = 1});
  ASSERT_TRUE(time.has_value());
  EXPECT_GT(time->kernels[0], 0);
  EXPECT_DOUBLE_EQ(time->seconds, 1 + 5 * time->kernels[0]);
  EXPECT_GT(time->peak.value, 0);
}

}  // namespace
}  // namespace megatron::plan
