#include "parallel/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "dist/ranks.h"
#include "parallel/process_groups.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using testing::each_rank;
using testing::make;

// Of the groups of a name, the one that holds the rank; empty: in none, or alone.
std::vector<int> list_of(const std::vector<ProcessGroups>& all, std::string_view name, int rank) {
  for (const ProcessGroups& groups : all) {
    if (groups.name != name) continue;
    for (const std::vector<int>& list : groups.ranks) {
      if (std::find(list.begin(), list.end(), rank) != list.end())
        return list.size() == 1 ? std::vector<int>() : list;
    }
  }
  return {};
}

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
  const std::vector<ProcessGroups> all = process_groups(options.layout, world_size);
  each_rank(world_size, [&](Group& world, Runtime& runtime) {
    const Ranks ranks(options, world);
    const int rank = world.rank();
    const auto expect = [&](Group* group, std::string_view name) {
      SCOPED_TRACE(name);
      expect_ranks(group, list_of(all, name, rank), rank, runtime);
    };
    const bool hybrid = options.layout.instances > 1;
    const DataParallelGroups data = ranks.data_parallel();
    const std::string_view shards =
        hybrid ? "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP" : "DATA_PARALLEL_GROUP_WITH_CP";
    const std::string_view instances =
        hybrid ? "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1" : "none";
    const std::string_view beside = options.beside ? "" : "none";
    const auto beside_or = [&](std::string_view name) { return beside.empty() ? name : beside; };
    expect(ranks.tensor().group, "TENSOR_MODEL_PARALLEL_GROUP");
    expect(ranks.tensor().beside, beside_or("TENSOR_MODEL_PARALLEL_GROUP"));
    expect(data.shards, shards);
    expect(data.beside, beside_or(shards));
    expect(data.instances, instances);
    expect(data.instances_beside, beside_or(instances));
    expect(data.tensor, "TENSOR_MODEL_PARALLEL_GROUP");
    expect(data.embedding,
           options.pipeline.kind == ScheduleKind::zero_bubble_v ? "none" : "EMBEDDING_GROUP");
    expect(ranks.stages(), "PIPELINE_MODEL_PARALLEL_GROUP");
    expect(ranks.stages_beside(), beside_or("PIPELINE_MODEL_PARALLEL_GROUP"));
    if (options.sharding == Sharding::none) {
      expect(ranks.norm(), "MODEL_PARALLEL_GROUP");
    } else {
      std::vector<int> list = list_of(all, "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", rank);
      expect_ranks(ranks.norm(), list, rank, runtime);
    }
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
