// Operands of a call that is repeated to measure it: separate, or overlapping as in the original.
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
  ReplayMemory memory(runtime, int64_t{2} << 20);  // less than two of the tensors
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

// A scalar in the same memory as a larger tensor is part of that tensor.
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

// Ends of zero would hide all keys but the first.
TEST(ReplayMemory, TwoSidedAttentionSeesAllKeys) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ReplayMemory memory(runtime, int64_t{2} << 20);
  OperandForm k{.name = "k", .shape = {1, 5, 1, 1}, .type = DType::f32, .storage = 0};
  k.strides = {5, 1, 1, 1};
  OperandForm ends{.name = "window_end", .shape = {1, 3}, .type = DType::i32, .storage = 1};
  ends.strides = {3, 1};
  EXPECT_EQ(to_doubles(memory.operands({.operands = {k, ends}})[1]),
            (std::vector<double>{4, 4, 4}));
}

// If no row belonged to an expert, products of experts would take no time.
TEST(ReplayMemory, RowsAreDividedEvenlyAmongExperts) {
  using kernels::Access;
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  ReplayMemory memory(runtime, int64_t{2} << 20);
  const auto integers = [](std::string_view name, Shape shape, int storage) {
    OperandForm form{.name = name, .shape = shape, .type = DType::i32, .storage = storage};
    form.strides = {shape.rank() == 1 ? 1 : shape[1], 1};
    return form;
  };
  const auto values = [&](const WorkItem& item, size_t operand) {
    return to_doubles(memory.operands(item)[operand]);
  };
  const OperandForm offsets = integers("offsets", {5}, 1);
  const std::vector<double> even = {0, 2, 5, 7, 10};
  EXPECT_EQ(values({.operands = {matrix("a", Access::read, 10, 0), offsets}}, 1), even);
  EXPECT_EQ(values({.operands = {matrix("dy", Access::read, 10, 0), offsets}}, 1), even);
  EXPECT_EQ(values({.operands = {matrix("x", Access::read, 3, 0), integers("index", {5}, 1)}}, 1),
            (std::vector<double>{0, 1, 2, 0, 1}));
  OperandForm counts{.name = "counts", .access = Access::update, .shape = {3}, .storage = 1};
  counts.strides[0] = 1;
  EXPECT_EQ(values({.operands = {integers("experts", {2, 2}, 0), counts}}, 0),
            (std::vector<double>{0, 1, 2, 0}));
}

}  // namespace
}  // namespace megatron::plan
