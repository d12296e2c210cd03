#include "parallel/mesh.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "dist/ranks.h"
#include "groups_cases.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using comm::run_ranks;
using testing::make;

// World ranks of the group's members, found by a collective.
std::vector<int> ranks_of(Group& group, int rank, Runtime& runtime) {
  Tensor mine = make(runtime, {1}, DType::i32, {static_cast<double>(rank)}),
         all = make(runtime, {group.size()}, DType::i32);
  group.all_gather(mine, all, runtime.stream(), "who");
  const auto span = all.span<int32_t>();
  return {span.begin(), span.end()};
}

// The group with this name that contains the rank.
std::vector<int> list_with(const Json& groups, int rank) {
  for (const Json& group : groups.as_array()) {
    std::vector<int> list;
    for (const Json& member : group.as_array())
      list.push_back(static_cast<int>(member.as_integer()));
    if (std::find(list.begin(), list.end(), rank) != list.end()) return list;
  }
  return {};
}

constexpr std::pair<const char*, AxisSet> kDense[] = {
    {"TENSOR_MODEL_PARALLEL_GROUP", Axis::tp},
    {"CONTEXT_PARALLEL_GROUP", Axis::cp},
    {"DATA_PARALLEL_GROUP", Axis::dp},
    {"PIPELINE_MODEL_PARALLEL_GROUP", Axis::pp},
    {"DATA_PARALLEL_GROUP_WITH_CP", {Axis::dp, Axis::cp}},
    {"MODEL_PARALLEL_GROUP", {Axis::tp, Axis::pp}}};
constexpr std::pair<const char*, AxisSet> kExpert[] = {{"EXPERT_TENSOR_PARALLEL_GROUP", Axis::tp},
                                                       {"EXPERT_MODEL_PARALLEL_GROUP", Axis::ep},
                                                       {"EXPERT_DATA_PARALLEL_GROUP", Axis::dp}};

// Compares groups with those of Megatron-LM, from golden vectors of many layouts.
TEST(Mesh, GroupsAreMegatrons) {
  Runtime runtime({DeviceKind::reference, 0}, 1);  // shared: the tensors are tiny
  int layouts = 0;
  const Json file = Json::read(MEGATRON_GOLDEN "/groups/groups.json");
  for (const Json& entry : file.as_array()) {
    const testing::GroupsCase c(entry);
    if (c.refused) continue;
    ++layouts;
    SCOPED_TRACE(entry.dump().substr(0, 100));
    run_ranks(c.world, [&](Group& world) {
      const Mesh mesh = Mesh::build(c.layout, world);
      const int rank = world.rank();
      EXPECT_EQ(&mesh.world(), &world);
      const auto expect = [&](Group& group, const std::string& name) {
        const std::vector<int> list = list_with(entry["groups"][name], rank);
        ASSERT_FALSE(list.empty()) << name;
        EXPECT_EQ(ranks_of(group, rank, runtime), list) << name;
        EXPECT_EQ(list[static_cast<size_t>(group.rank())], rank) << name;
      };
      for (const auto& [name, axes] : kDense) expect(mesh.group(axes), name);
      for (const auto& [name, axes] : kExpert) expect(mesh.expert_group(axes), name);
      for (size_t level = 0; level < c.layout.hierarchical_cp.size(); ++level)
        expect(mesh.context_level(level),
               fmt::format("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{}", level));
    });
  }
  EXPECT_EQ(layouts, 52);
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
