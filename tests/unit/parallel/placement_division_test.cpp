#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/placement.h"

namespace megatron::parallel {
namespace {

using Rows = std::vector<std::array<int64_t, 3>>;

Rows rows(std::span<const Slice> slices) {
  Rows all;
  for (const Slice& s : slices) all.push_back({s.global_begin, s.local_begin, s.size});
  return all;
}

std::vector<Slice> slices_of(Division division, int ranks, int rank) {
  division.ranks = ranks;
  return division.slices(rank);
}

Placement stacked() {
  Placement p;
  p.tensors = {{"q", {8, 3}, {{0, {{0, 0, 8}}}}}, {"k", {4, 3}, {{0, {{0, 8, 4}}}}}};
  return p;
}

TEST(SlicesOf, EachBlockIsDividedByItself) {
  const Division qkv{.axis = 0, .blocks = {8, 4, 4}};
  EXPECT_EQ(rows(slices_of(qkv, 1, 0)), (Rows{{0, 0, 8}, {8, 8, 4}, {12, 12, 4}}));
  EXPECT_EQ(rows(slices_of(qkv, 2, 1)), (Rows{{4, 0, 4}, {10, 4, 2}, {14, 6, 2}}));
}

TEST(SlicesOf, UnevenBlocksEndEarly) {
  const Division odd{.axis = 1, .blocks = {5}};
  Rows all;
  for (int rank = 0; rank < 4; ++rank) all.push_back(rows(slices_of(odd, 4, rank))[0]);
  EXPECT_EQ(all[0], (std::array<int64_t, 3>{0, 0, 2}));
  EXPECT_EQ(all[1], (std::array<int64_t, 3>{2, 0, 2}));
  EXPECT_EQ(all[2], (std::array<int64_t, 3>{4, 0, 1}));
  EXPECT_EQ(all[3][2], 0);
}

TEST(Narrowed, StackedTensorsKeepTheirShares) {
  const Division division{.axis = 0, .blocks = {8, 4}};
  const Placement p = narrowed(stacked(), 0, slices_of(division, 2, 1));
  ASSERT_EQ(p.tensors.size(), 2u);
  EXPECT_EQ(rows(p.tensors[0].slices(0)), (Rows{{4, 0, 4}}));
  EXPECT_EQ(rows(p.tensors[1].slices(0)), (Rows{{2, 4, 2}}));
  EXPECT_EQ(p.tensors[1].global, (Shape{4, 3}));
}

// GPT-2's q, k and v are one tensor, of which a rank holds three ranges.
TEST(Narrowed, OneTensorOfSeveralBlocks) {
  Placement whole;
  whole.tensors = {{"c_attn", {12, 3}, {{0, {{0, 0, 12}}}}, true}};
  const Division division{.axis = 0, .blocks = {4, 4, 4}};
  const Placement p = narrowed(whole, 0, slices_of(division, 2, 1));
  EXPECT_EQ(rows(p.tensors[0].slices(0)), (Rows{{2, 0, 2}, {6, 2, 2}, {10, 4, 2}}));
  EXPECT_TRUE(p.tensors[0].transposed);
  EXPECT_EQ(rows(narrowed(whole, 0, slices_of(division, 1, 0)).tensors[0].slices(0)),
            (Rows{{0, 0, 12}}));
}

TEST(Narrowed, AWholeTensorAlongItsOtherDim) {
  Placement whole;
  whole.tensors = {{"proj", {3, 10}, {{0, {{0, 0, 3}}}}, true}};
  const Division division{.axis = 1, .blocks = {10}};
  const Placement p = narrowed(whole, 1, slices_of(division, 4, 3));
  EXPECT_EQ(rows(p.tensors[0].slices(0)), (Rows{{0, 0, 3}}));
  EXPECT_EQ(rows(p.tensors[0].slices(1)), (Rows{{9, 0, 1}}));
}

// The experts' matrices [out,in] are stacked in [experts,out,in], divided by experts and columns.
TEST(Narrowed, AStackAlongTwoAxes) {
  Placement whole;
  for (int64_t e = 0; e < 3; ++e)
    whole.tensors.push_back({.name = fmt::format("experts.{}.down", e),
                             .global = {1, 2, 6},
                             .held = {{0, {{0, e, 1}}}},
                             .transposed = true,
                             .stacked = true});
  const Division experts{.axis = 0, .blocks = {3}, .group = RankGroup::expert},
      columns{.axis = 2, .blocks = {6}, .group = RankGroup::expert_tensor};
  const Placement p =
      narrowed(narrowed(whole, 0, slices_of(experts, 2, 1)), 2, slices_of(columns, 3, 1));
  EXPECT_TRUE(p.tensors[0].slices(0).empty());
  EXPECT_EQ(rows(p.tensors[2].slices(0)), (Rows{{0, 0, 1}}));
  EXPECT_EQ(rows(p.tensors[2].slices(2)), (Rows{{2, 0, 2}}));
  EXPECT_EQ(p.tensors[2].stored_shape(), (Shape{6, 2}));
  ParameterSpec spec;
  Runtime runtime({DeviceKind::reference, 0}, 1);
  spec.parameter.value =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {1, 2, 2}, DType::f32, "down");
  spec.placement = p;
  Rows runs;
  for_each_run(spec,
               [&](const CanonicalTensor& part, int64_t canonical, int64_t local, int64_t size) {
                 EXPECT_EQ(part.name, "experts.2.down");
                 runs.push_back({canonical, local, size});
               });
  EXPECT_EQ(runs, (Rows{{2, 0, 2}, {8, 2, 2}}));
}

TEST(FirstElement, IsThatOfTheSlice) {
  ParameterSpec spec;
  Runtime runtime({DeviceKind::reference, 0}, 1);
  spec.whole = {4, 3, 6};
  spec.divisions = {
      {.axis = 2, .blocks = {6}, .group = RankGroup::expert_tensor, .ranks = 3, .rank = 1},
      {.axis = 0, .blocks = {4}, .group = RankGroup::expert, .ranks = 2, .rank = 1}};
  spec.parameter.value =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {2, 3, 2}, DType::f32, "down");
  EXPECT_EQ(spec.first_element(), 2 * 18 + 2);
  spec.parameter.value =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {0, 3, 2}, DType::f32, "down");
  EXPECT_EQ(spec.first_element(), -1);
}

// Rows covered by several slices, by padding only, and by nothing.
TEST(Narrowed, RowsThatNoTensorCovers) {
  Placement padded;
  padded.tensors = {{"table", {5, 2}, {{0, {{0, 0, 5}}}}}};
  const std::vector<Slice> held = {{4, 0, 4}};  // rows 5 to 7 are padding
  EXPECT_EQ(rows(narrowed(padded, 0, held).tensors[0].slices(0)), (Rows{{4, 0, 1}}));
  const std::vector<Slice> none = {{6, 0, 2}};
  EXPECT_TRUE(narrowed(padded, 0, none).tensors[0].slices(0).empty());
}

TEST(Initialize, ShardsOfNarrowedPartsAreThoseOfTheWhole) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const auto values = [&](const Placement& placement, const Shape& shape, int64_t begin,
                          int64_t size) {
    ParameterSpec p;
    p.parameter.value =
        Tensor::empty(runtime.arena(MemoryClass::parameters), shape, DType::f32, "whole");
    p.placement = placement;
    p.init = {Init::Kind::normal, 1};
    const Tensor value = p.parameter.value.view({shape.elements()}).slice(0, begin, size);
    initialize(Shard{.placed = &p, .begin = begin, .value = value}, 3, runtime.stream());
    return to_doubles(value);
  };
  const std::vector<double> whole = values(stacked(), {12, 3}, 0, 36);
  const Division division{.axis = 0, .blocks = {8, 4}};
  const Placement half = narrowed(stacked(), 0, slices_of(division, 2, 1));
  for (int64_t begin = 0; begin < 18; ++begin) {
    for (int64_t size = 1; begin + size <= 18; ++size) {
      const std::vector<double> some = values(half, {6, 3}, begin, size);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = begin + i, row = at / 3;
        const int64_t whole_row = row < 4 ? 4 + row : 8 + 2 + row - 4;
        ASSERT_EQ(some[static_cast<size_t>(i)], whole[static_cast<size_t>(whole_row * 3 + at % 3)]);
      }
    }
  }
}

}  // namespace
}  // namespace megatron::parallel
