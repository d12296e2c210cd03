// Operands of a call that is made again for its time: apart, or together as they were.
#include "plan/replay_memory.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

OperandForm matrix(std::string_view name, kernels::Access access, int64_t rows, int storage) {
  OperandForm form{.name = name, .access = access, .shape = {rows, 1024}, .storage = storage};
  form.strides = {1024, 1};
  return form;
}

struct Range {
  const std::byte *begin, *end;
};
Range range_of(const Tensor& t) {
  const auto* begin = static_cast<const std::byte*>(t.raw());
  return {begin, begin + t.bytes()};
}

TEST(ReplayMemory, OperandsOfACallLieApartHoweverLargeTheyAre) {
  using kernels::Access;
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ReplayMemory memory(runtime, int64_t{2} << 20);  // less than two of them
  const WorkItem item{
      .operands = {matrix("a", Access::read, 300, 0), matrix("b", Access::read, 300, 1),
                   matrix("out", Access::write, 300, 2), matrix("aux", Access::write, 300, 3)}};
  for (int call = 0; call < 5; ++call) {
    const std::vector<Tensor> tensors = memory.operands(item);
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].shape(), Shape({300, 1024}));
      for (size_t j = 0; j < i; ++j) {
        const Range a = range_of(tensors[i]), b = range_of(tensors[j]);
        EXPECT_TRUE(a.end <= b.begin || b.end <= a.begin) << call << ": " << i << " and " << j;
      }
    }
  }
}

TEST(ReplayMemory, WhatSharedMemoryShares) {
  using kernels::Access;
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ReplayMemory memory(runtime, int64_t{2} << 20);
  const WorkItem item{
      .operands = {matrix("x", Access::read, 30, 0), matrix("out", Access::write, 30, 0)}};
  const std::vector<Tensor> tensors = memory.operands(item);
  EXPECT_EQ(tensors[0].raw(), tensors[1].raw());
}

// One number that stands for itself, and more of the same memory.
TEST(ReplayMemory, AScalarWithinATensorIsOfTheTensor) {
  using kernels::Access;
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ReplayMemory memory(runtime, int64_t{2} << 20);
  OperandForm scalar{.name = "step", .access = Access::read, .shape = {1}, .type = DType::f64};
  OperandForm all{.name = "x", .access = Access::read, .shape = {8}, .type = DType::f64};
  scalar.strides[0] = all.strides[0] = 1;
  const std::vector<Tensor> tensors = memory.operands({.operands = {scalar, all}});
  EXPECT_EQ(tensors[0].raw(), tensors[1].raw());
  EXPECT_EQ(tensors[1].bytes(), 64);
}

}  // namespace
}  // namespace megatron::plan
