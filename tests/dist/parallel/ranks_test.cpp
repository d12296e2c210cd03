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

// The one that holds the rank; empty: none, or one rank alone.
std::vector<int> list_of(const Lists& lists, int rank) {
  for (const std::vector<int>& list : lists) {
    if (std::find(list.begin(), list.end(), rank) != list.end())
      return list.size() == 1 ? std::vector<int>() : list;
  }
  return {};
}

// What the groups of a layout must be: slices of the mesh, whose groups are Megatron-LM's
// (mesh_test.cpp), and what optimizer instances make of them.
struct Expected {
  Expected(const Layout& layout, int world)
      : tensor(rank_lists(layout, world, Axis::tp)),
        stages(rank_lists(layout, world, Axis::pp)),
        model(rank_lists(layout, world, {Axis::tp, Axis::pp})),
        instance(static_cast<size_t>(layout.instances)) {
    for (const std::vector<int>& pipeline : stages)
      ends.push_back(pipeline.size() == 1 ? pipeline
                                          : std::vector{pipeline.front(), pipeline.back()});
    for (const std::vector<int>& data : rank_lists(layout, world, {Axis::dp, Axis::cp})) {
      const size_t size = data.size() / instance.size();  // neighbours are one instance
      shards.resize(shards.size() + instance.size());
      instances.resize(instances.size() + size);
      for (size_t i = 0; i < data.size(); ++i) {
        (shards.end() - layout.instances)[static_cast<std::ptrdiff_t>(i / size)].push_back(data[i]);
        (instances.end() - static_cast<std::ptrdiff_t>(size))[static_cast<std::ptrdiff_t>(i % size)]
            .push_back(data[i]);
        instance[i / size].push_back(data[i]);
      }
    }
  }

  Lists tensor, stages, model;
  Lists ends;       // first and last stage
  Lists shards;     // of one instance, see different samples
  Lists instances;  // the same shard in each instance
  Lists instance;   // all ranks of one
};

// The sum of the ranks' numbers over a group, and their number; a null group has one rank.
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
    const auto when = [](bool there, const Lists& lists) { return there ? lists : Lists(); };
    expect(ranks.tensor().group, expected.tensor, "tensor");
    expect(ranks.tensor().beside, when(options.beside, expected.tensor), "tensor, overlapped");
    expect(data.shards, expected.shards, "shards");
    expect(data.beside, when(options.beside, expected.shards), "shards, overlapped");
    expect(data.instances, when(options.layout.instances > 1, expected.instances), "instances");
    expect(data.instances_beside,
           when(options.layout.instances > 1 && options.beside, expected.instances),
           "instances, overlapped");
    expect(data.tensor, expected.tensor, "tensor of data");
    expect(data.embedding,
           when(options.pipeline.kind != ScheduleKind::zero_bubble_v, expected.ends), "embedding");
    expect(ranks.stages(), expected.stages, "stages");
    expect(ranks.stages_beside(), when(options.beside, expected.stages), "stages, overlapped");
    expect(ranks.norm(), options.sharding == Sharding::none ? expected.model : expected.instance,
           "norm");
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
  options.beside = true;
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
