#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "dist/ranks.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using comm::run_ranks;
using testing::make;

// The group's ranks of the world, by asking them.
std::vector<int> ranks_of(Group& group, int rank, Runtime& runtime) {
  Tensor mine = make(runtime, {1}, DType::i32, {static_cast<double>(rank)}),
         all = make(runtime, {group.size()}, DType::i32);
  group.all_gather(mine, all, runtime.stream(), "who");
  const auto span = all.span<int32_t>();
  return {span.begin(), span.end()};
}

std::vector<int> list_with(const Layout& layout, int world, AxisSet axes, bool expert, int rank) {
  for (const auto& list : rank_lists(layout, world, axes, expert)) {
    if (std::find(list.begin(), list.end(), rank) != list.end()) return list;
  }
  return {};
}

TEST(Mesh, GroupsAreTheRankLists) {
  const Layout layouts[] = {{},
                            {.tp = 2},
                            {.tp = 2, .cp = 2, .pp = 2},
                            {.tp = 2, .ep = 4, .etp = 1},
                            {.tp = 2, .ep = 2, .pp = 2, .etp = 1},
                            {.tp = 2, .pp = 2, .order = "tp-cp-ep-pp-dp"}};
  Runtime runtime({DeviceKind::reference, 0}, 1);  // shared: the tensors are tiny
  for (const Layout& layout : layouts) {
    run_ranks(8, [&](Group& world) {
      const Mesh mesh = Mesh::build(layout, world);
      const int rank = world.rank();
      EXPECT_EQ(&mesh.world(), &world);
      for (const AxisSet axes :
           {AxisSet(Axis::tp), AxisSet(Axis::cp), AxisSet(Axis::ep), AxisSet(Axis::dp),
            AxisSet(Axis::pp), AxisSet{Axis::dp, Axis::cp}, AxisSet{Axis::tp, Axis::pp}}) {
        const std::vector<int> list = list_with(layout, 8, axes, false, rank);
        EXPECT_EQ(list[static_cast<size_t>(mesh.group(axes).rank())], rank);
        EXPECT_EQ(ranks_of(mesh.group(axes), rank, runtime), list);
      }
      for (const AxisSet axes : {AxisSet(Axis::tp), AxisSet(Axis::ep), AxisSet(Axis::dp)}) {
        EXPECT_EQ(ranks_of(mesh.expert_group(axes), rank, runtime),
                  list_with(layout, 8, axes, true, rank));
      }
    });
  }
}

TEST(Mesh, SizesAndCoordinates) {
  run_ranks(8, [](Group& world) {
    const Mesh mesh = Mesh::build({.tp = 2, .pp = 2}, world);
    const int rank = world.rank();
    EXPECT_EQ(mesh.size(Axis::tp), 2);
    EXPECT_EQ(mesh.size(Axis::dp), 2);
    EXPECT_EQ(mesh.size(Axis::ep), 1);
    EXPECT_EQ(mesh.coordinate(Axis::tp), rank % 2);
    EXPECT_EQ(mesh.coordinate(Axis::dp), rank / 2 % 2);
    EXPECT_EQ(mesh.coordinate(Axis::pp), rank / 4);
    EXPECT_THROW(mesh.group({Axis::tp, Axis::dp}), InternalError);
    EXPECT_EQ(&mesh.group({Axis::dp, Axis::cp}), &mesh.group(Axis::dp));  // the same ranks
    EXPECT_THROW(mesh.expert_group(Axis::pp), InternalError);
  });
}

TEST(Mesh, WrongDegreesAreAnErrorOnEveryRank) {
  run_ranks(4, [](Group& world) { EXPECT_THROW(Mesh::build({.tp = 3}, world), Error); });
  EXPECT_THROW(Mesh::build({.tp = 2}, *comm::single()), Error);
}

}  // namespace
}  // namespace megatron::parallel
