#include "parallel/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "dist/ranks.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using testing::each_rank;
using testing::make;

using Lists = std::vector<std::vector<int>>;

// The list that contains the rank. Empty if there is none or it has only one rank.
std::vector<int> list_of(const Lists& lists, int rank) {
  for (const std::vector<int>& list : lists) {
    if (std::find(list.begin(), list.end(), rank) != list.end())
      return list.size() == 1 ? std::vector<int>() : list;
  }
  return {};
}

// Expected groups of a layout: slices of the mesh, whose groups match Megatron-LM's
// (mesh_test.cpp), with optimizer instances applied.
struct ExpectedReplicas {
  ExpectedReplicas(const Lists& replicas, size_t count) : instance(count) {
    for (const std::vector<int>& ranks : replicas) {
      const size_t size = ranks.size() / count;  // neighbours form one instance
      shards.resize(shards.size() + count);
      instances.resize(instances.size() + size);
      for (size_t i = 0; i < ranks.size(); ++i) {
        shards[shards.size() - count + i / size].push_back(ranks[i]);
        instances[instances.size() - size + i % size].push_back(ranks[i]);
        instance[i / size].push_back(ranks[i]);
      }
    }
  }
  Lists shards;     // ranks of one instance that see different samples
  Lists instances;  // ranks with the same shard, one in each instance
  Lists instance;   // all ranks of one instance
};

struct Expected {
  Expected(const Layout& layout, int world)
      : tensor(rank_lists(layout, world, Axis::tp)),
        context(rank_lists(layout, world, Axis::cp)),
        stages(rank_lists(layout, world, Axis::pp)),
        model(rank_lists(layout, world, {Axis::tp, Axis::pp})),
        expert(rank_lists(layout, world, Axis::ep, true)),
        expert_tensor(rank_lists(layout, world, Axis::tp, true)),
        dense_data(rank_lists(layout, world, {Axis::dp, Axis::cp})),
        expert_data(rank_lists(layout, world, Axis::dp, true)),
        dense(dense_data, static_cast<size_t>(layout.instances)),
        experts(expert_data, static_cast<size_t>(layout.instances)) {}

  Lists tensor, context, stages, model, expert, expert_tensor, dense_data, expert_data;
  ExpectedReplicas dense, experts;
};

// Sum of the ranks' numbers over a group, and its size. A null group has one rank.
void expect_ranks(Group* group, const std::vector<int>& list, int rank, Runtime& runtime) {
  ASSERT_EQ(group == nullptr, list.empty()) << list.size();
  if (group == nullptr) return;
  EXPECT_EQ(group->size(), static_cast<int>(list.size()));
  Tensor bits = make(runtime, {1}, DType::f64, {static_cast<double>(int64_t{1} << rank)});
  group->all_reduce(bits, comm::Reduce::sum, runtime.stream(), "who").wait(runtime.stream());
  runtime.stream().synchronize();
  double expected = 0;
  for (const int member : list) expected += static_cast<double>(int64_t{1} << member);
  EXPECT_EQ(bits.span<double>()[0], expected);
}

void compare_groups(const RanksOptions& options, int world_size) {
  const Expected expected(options.layout, world_size);
  each_rank(world_size, [&](Group& world, Runtime& runtime) {
    const Ranks ranks(options, world);
    const int rank = world.rank();
    const auto expect = [&](Group* group, const Lists& lists, std::string_view name) {
      SCOPED_TRACE(name);
      expect_ranks(group, list_of(lists, rank), rank, runtime);
    };
    const DataParallelGroups data = ranks.data_parallel();
    const ModelRanks modules = ranks.modules();
    const auto when = [](bool there, const Lists& lists) { return there ? lists : Lists(); };
    expect(ranks.tensor().group, expected.tensor, "tensor");
    expect(ranks.tensor().async, when(options.async, expected.tensor), "tensor, overlapped");
    expect(modules.context, expected.context, "context");
    expect(modules.expert, expected.expert, "expert");
    expect(modules.expert_tensor, expected.expert_tensor, "expert tensor");
    const bool several = options.layout.instances > 1;
    for (const bool experts : {false, true}) {
      SCOPED_TRACE(experts ? "of experts" : "of dense layers");
      const ExpectedReplicas& lists = experts ? expected.experts : expected.dense;
      const Replicas& replicas = data.replicas(experts);
      expect(replicas.shards, lists.shards, "shards");
      expect(replicas.async, when(options.async, lists.shards), "shards, overlapped");
      expect(replicas.instances, when(several, lists.instances), "instances");
      expect(replicas.instances_async, when(several && options.async, lists.instances),
             "instances, overlapped");
    }
    expect(data.ranks.tensor.group, expected.tensor, "tensor of data");
    expect(data.stages, expected.stages, "stages of data");
    expect(ranks.stages(), expected.stages, "stages");
    expect(ranks.stages_async(), when(options.async, expected.stages), "stages, overlapped");
    // Without shards and with no experts elsewhere, a replica has everything.
    const bool whole = options.sharding == Sharding::none;
    const bool apart = expected.dense_data != expected.expert_data;
    Lists norm = whole && !apart ? expected.model : expected.dense.instance;
    if (whole && apart) norm = rank_lists({}, world_size, Axis::dp);
    expect(ranks.norm(), norm, "norm");
    const auto first_of = [&](const Lists& lists) {
      return list_of(lists, rank).empty() || list_of(lists, rank)[0] == rank;
    };
    EXPECT_EQ(data.dense.counted, !whole || !apart || first_of(expected.dense_data));
    EXPECT_EQ(data.expert.counted, !whole || !apart || first_of(expected.expert_data));
    EXPECT_EQ(ranks.first(), ranks.holds(0));
    EXPECT_EQ(ranks.tensor().sequence, options.sequence);
  });
}

RanksOptions options_of(const Layout& layout, Sharding sharding = Sharding::none, int chunks = 1) {
  RanksOptions options;
  options.layout = layout;
  options.sharding = sharding;
  options.pipeline.stages = layout.pp;
  options.pipeline.chunks = chunks;
  if (chunks > 1) options.pipeline.kind = ScheduleKind::interleaved;
  return options;
}

// The replicas of experts are on other ranks than the replicas of dense layers.
TEST(Ranks, ExpertsAreOnGroupsOfTheirOwn) {
  for (const Sharding sharding : {Sharding::none, Sharding::gradients}) {
    compare_groups(options_of({.ep = 2}, sharding), 4);
    compare_groups(options_of({.ep = 4}, sharding), 4);
    compare_groups(options_of({.tp = 2, .ep = 2, .pp = 2}, sharding), 16);
    compare_groups(options_of({.tp = 2, .etp = 1}, sharding), 4);
    compare_groups(options_of({.tp = 2, .cp = 2, .ep = 4, .etp = 1}, sharding), 16);
  }
  RanksOptions options = options_of({.ep = 2, .instances = 2}, Sharding::optimizer);
  options.async = true;
  compare_groups(options, 8);
}

TEST(Ranks, GroupsOfOneRankAreNone) { compare_groups(options_of({}), 1); }

TEST(Ranks, GroupsAreMegatrons) {
  compare_groups(options_of({}), 4);
  compare_groups(options_of({.tp = 2, .pp = 2}), 8);
  compare_groups(options_of({.tp = 2, .pp = 2, .order = "tp-cp-ep-pp-dp"}), 8);
  compare_groups(options_of({.tp = 2, .pp = 3}, Sharding::optimizer), 12);
  compare_groups(options_of({.cp = 2, .pp = 2}, Sharding::parameters, 2), 8);
}

TEST(Ranks, InstancesAreChunksOfNeighbours) {
  compare_groups(options_of({.instances = 2}, Sharding::gradients), 4);
  compare_groups(options_of({.instances = 4}, Sharding::gradients), 4);
  compare_groups(options_of({.tp = 2, .pp = 2, .instances = 2}, Sharding::optimizer), 16);
  compare_groups(
      options_of({.tp = 2, .order = "tp-cp-ep-pp-dp", .instances = 2}, Sharding::parameters), 8);
}

TEST(Ranks, GroupsBesideTheComputeHoldTheSameRanks) {
  RanksOptions options = options_of({.tp = 2, .pp = 2, .instances = 2}, Sharding::optimizer);
  options.async = true;
  options.sequence = true;
  compare_groups(options, 16);
}

TEST(Ranks, OfAVTheEmbeddingAndTheLossLieTogether) {
  RanksOptions options = options_of({.tp = 2, .pp = 3}, Sharding::none, 2);
  options.pipeline.kind = ScheduleKind::zero_bubble_v;
  compare_groups(options, 6);
  each_rank(6, [&](Group& world, Runtime&) {
    const Ranks ranks(options, world);
    EXPECT_EQ(ranks.first(), world.rank() < 2);
    EXPECT_EQ(ranks.last(), world.rank() < 2);
  });
}

TEST(Ranks, StagesHoldTheirPieces) {
  each_rank(4, [](Group& world, Runtime&) {
    const Ranks ranks(options_of({.pp = 4}, Sharding::none, 2), world);
    EXPECT_EQ(ranks.stage(), world.rank());
    EXPECT_EQ(ranks.first(), world.rank() == 0);
    EXPECT_EQ(ranks.last(), world.rank() == 3);
    EXPECT_TRUE(ranks.holds(world.rank() + 4));
    EXPECT_FALSE(ranks.holds((world.rank() + 1) % 4));
  });
}

TEST(Ranks, WrongDegreesAreAnErrorOnEveryRank) {
  each_rank(4, [](Group& world, Runtime&) {
    EXPECT_THROW(Ranks(options_of({.tp = 3}), world), Error);
    EXPECT_THROW(Ranks(options_of({.instances = 3}), world), Error);
  });
}

}  // namespace
}  // namespace megatron::parallel
