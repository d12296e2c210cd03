#include "nn/builder.h"

#include <gtest/gtest.h>

#include "comm/traffic.h"
#include "nn/linear.h"

namespace megatron::nn {
namespace {

parallel::Placement one_tensor(const std::string& name, const Shape& shape) {
  parallel::Placement placement;
  placement.tensors = {{name, shape, {{0, {{0, 0, shape[0]}}}}}};
  return placement;
}

struct Rank {
  Rank(int rank, int ranks, bool sequence)
      : group(comm::simulated(rank, ranks)),
        builder(runtime, DType::bf16, one_tensor,
                {.tensor = {.group = group.get(), .sequence = sequence}}) {}

  Runtime runtime{{DeviceKind::reference, 0}, 1};
  std::unique_ptr<comm::Group> group;
  Builder builder;
};

TEST(Builder, AParameterHasAShapeAndNoMemory) {
  Rank r(0, 1, false);
  const Parameter& p = *r.builder.add("w", {4, 3}, zeros(), {.uses = 2}).parameter;
  EXPECT_EQ(p.value.shape(), (Shape{4, 3}));
  EXPECT_EQ(p.value.dtype(), DType::bf16);
  EXPECT_FALSE(p.value.device().has_data());
  EXPECT_EQ(p.uses.size(), 2u);
  EXPECT_EQ(r.runtime.arena(MemoryClass::parameters).in_use(), 0);
  const auto placed = r.builder.take();
  EXPECT_EQ(placed[0]->whole, (Shape{4, 3}));
  EXPECT_TRUE(placed[0]->decay && placed[0]->counted && !placed[0]->partial);
  parallel::allocate(std::vector{placed[0].get()}, r.runtime);
  EXPECT_EQ(p.value.shape(), (Shape{4, 3}));
  EXPECT_EQ(r.runtime.arena(MemoryClass::parameters).in_use(), 64);
}

TEST(Builder, WhatIsNotDividedIsCountedOnceAndPartialWhereTokensAreDivided) {
  for (const bool sequence : {false, true}) {
    for (int rank = 0; rank < 2; ++rank) {
      Rank r(rank, 2, sequence);
      r.builder.add("norm", {6}, ones());
      r.builder.add("w", {6, 2}, zeros(), {.divisions = {{.axis = 0, .blocks = {2, 4}}}});
      const auto placed = r.builder.take();
      EXPECT_EQ(placed[0]->counted, rank == 0);
      EXPECT_EQ(placed[0]->partial.has_value(), sequence);
      EXPECT_EQ(placed[0]->parameter.value.shape(), (Shape{6}));
      EXPECT_TRUE(placed[1]->counted);
      EXPECT_FALSE(placed[1]->partial);
      EXPECT_EQ(placed[1]->parameter.value.shape(), (Shape{3, 2}));
      EXPECT_EQ(placed[1]->whole, (Shape{6, 2}));
      EXPECT_EQ(placed[1]->placement.tensors[0].slices(0).size(), 2u);
    }
  }
}

TEST(Linear, ColumnsAndRowsOfAPairFitEachOther) {
  int64_t held = 0;
  for (int rank = 0; rank < 4; ++rank) {
    Rank r(rank, 4, false);
    const ColumnLinear up(r.builder, "up", 8, {7, 7}, true, normal(1));
    const RowLinear down(r.builder, "down", 7, 8, true, normal(1));
    const auto p = r.builder.take();
    const int64_t share = parallel::share_of(7, 4, rank).size;
    held += share;
    EXPECT_EQ(p[0]->parameter.value.shape(), (Shape{2 * share, 8}));
    EXPECT_EQ(p[1]->parameter.value.shape(), (Shape{2 * share}));
    EXPECT_EQ(p[2]->parameter.value.shape(), (Shape{8, share}));
    EXPECT_EQ(p[3]->parameter.value.shape(), (Shape{8}));
    EXPECT_FALSE(p[1]->decay);
    EXPECT_TRUE(p[3]->divisions.empty());
  }
  EXPECT_EQ(held, 7);
}

}  // namespace
}  // namespace megatron::nn
