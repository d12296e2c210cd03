// Gradients and values on data-parallel ranks are bit-identical to a serial computation.
#include "parallel/data_parallel.h"

#include "base/error.h"
#include "dist/parallel/toy_stage.h"

namespace megatron::parallel {
namespace {

using comm::Group;
using testing::each_rank;
using testing::kShardings;
using testing::toy_parameters;
using testing::ToyGroups;
using testing::ToyParameter;
using testing::ToyStage;

constexpr size_t kTable = 0, kBias = 3, kFrozen = 7;

std::vector<float> initial(const ParameterSpec& placed) {
  std::vector<float> values(static_cast<size_t>(placed.parameter.value.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = ToyStage::initial(placed.parameter.name, static_cast<int64_t>(i));
  if (placed.parameter.value.dtype() == DType::bf16)
    for (float& value : values) value = static_cast<float>(bf16(value));
  return values;
}

// Sums in the header's order: micro-batches, uses, tensor ranks, then data-parallel ranks.
std::vector<float> serial_sum(ToyStage& stage, size_t p, int ranks, int micro_batches, int parts) {
  const Parameter& parameter = stage[p].parameter;
  const std::vector<float> values = initial(stage[p]);
  const auto add = [](std::vector<float>& sum, const std::vector<float>& term) {
    if (sum.empty()) {
      sum = term;
      return;
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
  };
  std::vector<float> total;
  for (int r = 0; r < ranks; ++r) {
    std::vector<float> of_rank;
    for (int part = 0; part < (stage[p].partial ? parts : 1); ++part) {
      std::vector<float> of_part;
      for (size_t use = 0; use < parameter.uses.size(); ++use) {
        std::vector<float> of_use;
        for (int m = 0; m < micro_batches; ++m)
          add(of_use, stage.gradient(p, use, r * micro_batches + m, part, values));
        add(of_part, of_use);
      }
      add(of_rank, of_part);
    }
    add(total, of_rank);
  }
  return total;
}

std::vector<float> part_of(const std::vector<float>& whole, const Shard& shard) {
  return {whole.begin() + shard.begin, whole.begin() + shard.begin + shard.size()};
}

// The world has parts x data-parallel ranks, where parts are the tensor-parallel ranks.
void check_against_serial(Sharding sharding, bool overlap, int parts, int ranks, int micro_batches,
                          const std::vector<ToyParameter>& list = toy_parameters()) {
  each_rank(parts * ranks, DeviceKind::cpu, [&](Group& world, Runtime& runtime) {
    const int part = world.rank() % parts, rank = world.rank() / parts;
    const auto data = world.split(part, rank, ranks), tensor = world.split(rank, part, parts);
    ToyStage stage(runtime, list);
    const ToyGroups made(*data, 1);
    DataParallelGroups groups = made.groups();
    groups.ranks.tensor.group = tensor.get();
    DataParallel dp(stage.placed(), stage.spans(), groups, runtime,
                    {.sharding = sharding, .overlap_reduce = overlap, .overlap_gather = overlap});
    stage.fill(dp.shards());
    dp.parameters_changed();
    for (int step = 0; step < 2; ++step) {  // the second step starts from old contents
      dp.begin_step(micro_batches);
      for (int m = 0; m < micro_batches; ++m) stage.run(dp, rank * micro_batches + m, part);
      dp.finish();
      ASSERT_EQ(dp.shards().size(), stage.size());
      for (size_t p = 0; p < stage.size(); ++p) {
        const Shard& shard = dp.shards()[p];
        EXPECT_EQ(shard.placed, &stage[p]);
        EXPECT_EQ(to_floats(shard.value), part_of(initial(stage[p]), shard));
        EXPECT_EQ(shard.gradient.defined(), p != kFrozen);
        if (p == kFrozen) continue;
        EXPECT_EQ(shard.gradient.shape(), shard.value.shape());
        EXPECT_EQ(to_floats(shard.gradient),
                  part_of(serial_sum(stage, p, ranks, micro_batches, parts), shard))
            << name(sharding) << ", parameter " << p << ", step " << step;
      }
    }
  });
}

TEST(DataParallel, IsTheSerialSumBitForBit) {
  for (const Sharding sharding : kShardings) {
    for (const bool overlap : {false, true}) {
      for (const int ranks : {1, 2, 4}) check_against_serial(sharding, overlap, 1, ranks, 1);
      check_against_serial(sharding, overlap, 2, 2, 1);
      if (sharding < Sharding::gradients) {
        check_against_serial(sharding, overlap, 1, 3, 3);
        check_against_serial(sharding, overlap, 3, 2, 2);
      }
    }
  }
}

// Every second parameter is bf16: spans, shards and partial gradients mix both types, one span has
// a single type, and the table has two uses.
TEST(DataParallel, OfSeveralTypesIsTheSerialSumBitForBit) {
  std::vector<ToyParameter> list = toy_parameters();
  for (size_t p = 1; p < list.size(); p += 2) list[p].type = DType::bf16;
  for (const Sharding sharding : kShardings) {
    for (const bool overlap : {false, true}) {
      check_against_serial(sharding, overlap, 1, 2, 1, list);
      check_against_serial(sharding, overlap, 2, 2, 1, list);
      if (sharding < Sharding::gradients) check_against_serial(sharding, overlap, 1, 3, 3, list);
    }
  }
}

// Two stages hold the table, each for one use. The bits equal those of one stage with both uses.
TEST(DataParallel, TiedAcrossStagesIsOneStage) {
  for (const Sharding sharding : kShardings) {
    for (const int micro_batches : {1, 3}) {
      std::vector<float> one(130 * 127);
      const auto collect = [](const Shard& shard, std::vector<float>& all) {
        const std::vector<float> own = to_floats(shard.gradient);
        std::ranges::copy(own, all.begin() + shard.begin);  // each rank sets its own part
      };
      each_rank(2, DeviceKind::cpu, [&](Group& world, Runtime& runtime) {
        ToyStage stage(runtime, toy_parameters());
        const ToyGroups groups(world, 1);
        DataParallel dp(stage.placed(), stage.spans(), groups.groups(), runtime,
                        {.sharding = sharding, .overlap_reduce = true});
        stage.fill(dp.shards());
        dp.parameters_changed();
        dp.begin_step(micro_batches);
        for (int m = 0; m < micro_batches; ++m) stage.run(dp, world.rank() * micro_batches + m);
        dp.finish();
        if (sharding != Sharding::none || world.rank() == 0) collect(dp.shards()[kTable], one);
      });
      each_rank(4, DeviceKind::cpu, [&](Group& world, Runtime& runtime) {
        const int stage_index = world.rank() % 2, rank = world.rank() / 2;
        const auto data = world.split(stage_index, rank, 2);
        const auto stages = world.split(rank, stage_index, 2);
        std::vector<ToyParameter> list = toy_parameters();
        list[kTable].uses = 1;
        list[kTable].use_stages = {0, 1};
        list[kTable].first_use = stage_index;
        list[kTable].spans = {0};
        list[kTable].seeds = {stage_index};
        ToyStage stage(runtime, stage_index == 0
                                    ? std::vector(list.begin(), list.begin() + 3)
                                    : std::vector<ToyParameter>{{"norm", {9}, {0}}, list[kTable]});
        const ToyGroups made(*data, 1);
        DataParallelGroups groups = made.groups();
        groups.stages = stages.get();
        DataParallel dp(stage.placed(), stage.spans(), groups, runtime,
                        {.sharding = sharding, .overlap_reduce = true});
        stage.fill(dp.shards());
        dp.parameters_changed();
        dp.begin_step(micro_batches);
        for (int m = 0; m < micro_batches; ++m) stage.run(dp, rank * micro_batches + m);
        dp.finish();
        const Shard& table = dp.shards()[stage_index == 0 ? kTable : 1];
        EXPECT_EQ(to_floats(table.gradient), part_of(one, table)) << name(sharding);
      });
    }
  }
}

TEST(DataParallel, WhatGotNoGradientInThisStepIsZero) {
  for (const Sharding sharding : kShardings) {
    each_rank(2, DeviceKind::cpu, [&](Group& world, Runtime& runtime) {
      ToyStage stage(runtime, toy_parameters());
      const ToyGroups groups(world, 1);
      DataParallel dp(stage.placed(), stage.spans(), groups.groups(), runtime,
                      {.sharding = sharding});
      stage.fill(dp.shards());
      dp.parameters_changed();
      for (const bool all : {true, false}) {
        dp.begin_step(1);
        if (all) stage.run(dp, world.rank());
        // Only on one rank, and only for the second use of the tied weight.
        if (!all) dp.enter(*stage.spans()[0], Pass::forward);
        if (!all && world.rank() == 1) stage.give(dp, stage[kTable].parameter, 1, 7, 0);
        if (!all) dp.leave(*stage.spans()[0], Pass::forward);
        dp.finish();
      }
      for (size_t p = 1; p < stage.size(); ++p) {
        if (p == kFrozen) continue;
        for (const float x : to_floats(dp.shards()[p].gradient)) EXPECT_EQ(x, 0.0f) << p;
      }
      EXPECT_EQ(
          to_floats(dp.shards()[kTable].gradient),
          part_of(stage.gradient(kTable, 1, 7, 0, initial(stage[kTable])), dp.shards()[kTable]));
    });
  }
}

TEST(DataParallel, OtherTypesAndDevices) {
  for (const DType type : {DType::f64, DType::bf16}) {
    each_rank(2, DeviceKind::reference, [&](Group& world, Runtime& runtime) {
      ToyStage stage(runtime, toy_parameters(), type);
      const ToyGroups groups(world, 1);
      DataParallel dp(stage.placed(), stage.spans(), groups.groups(), runtime,
                      {.sharding = Sharding::parameters});
      stage.fill(dp.shards());
      dp.parameters_changed();
      dp.begin_step(1);
      stage.run(dp, world.rank());
      dp.finish();
      for (const Shard& shard : dp.shards()) {
        EXPECT_EQ(shard.value.dtype(), type);
        if (!shard.gradient.defined()) continue;
        EXPECT_EQ(shard.gradient.dtype(), kernels::accumulator(type));
      }
    });
  }
}

TEST(DataParallel, EmptyAndWrong) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  DataParallel empty({}, {}, {}, runtime, {});
  empty.parameters_changed();
  empty.begin_step(1);
  empty.finish();
  EXPECT_EQ(empty.buckets(), 0);
  EXPECT_THROW(DataParallel({}, {}, {}, runtime, {.bucket_elements = -1}), Error);
}

// With null groups everything is whole and updated in place.
TEST(DataParallel, OneRankDividesNothing) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  for (const Sharding sharding : kShardings) {
    ToyStage stage(runtime, toy_parameters());
    DataParallel dp(stage.placed(), stage.spans(), {}, runtime,
                    {.sharding = sharding, .overlap_reduce = true, .overlap_gather = true});
    for (const Shard& shard : dp.shards()) {
      EXPECT_TRUE(shard.is_whole());
      EXPECT_EQ(shard.value.raw(), shard.placed->parameter.value.raw());
      if (!shard.gradient.defined()) continue;
      EXPECT_EQ(shard.gradient.raw(), shard.placed->parameter.uses[0].grad.raw());
    }
  }
}

TEST(DataParallel, GatherAllIsUndoneByTheNextStep) {
  each_rank(3, DeviceKind::cpu, [](Group& world, Runtime& runtime) {
    ToyStage stage(runtime, toy_parameters());
    const ToyGroups groups(world, 1);
    DataParallel dp(stage.placed(), stage.spans(), groups.groups(), runtime,
                    {.sharding = Sharding::parameters, .overlap_gather = true});
    stage.fill(dp.shards());
    dp.parameters_changed();
    const Span& layer = *stage.spans()[1];
    for (int round = 0; round < 2; ++round) {
      dp.enter(layer, Pass::forward);
      EXPECT_EQ(to_floats(stage[2].parameter.value), initial(stage[2]));
      EXPECT_EQ(to_floats(stage[kBias].parameter.value), initial(stage[kBias]));
      EXPECT_FALSE(stage[8].parameter.value.device().has_data());  // belongs to another span
      dp.leave(layer, Pass::forward);
      EXPECT_FALSE(stage[2].parameter.value.device().has_data());
      EXPECT_EQ(stage[2].parameter.value.shape(), Shape({40, 500}));
      dp.gather_all();
      dp.gather_all();
      for (size_t p = 0; p < stage.size(); ++p)
        EXPECT_EQ(to_floats(stage[p].parameter.value), initial(stage[p]));
      dp.enter(layer, Pass::forward);
      dp.leave(layer, Pass::forward);
      EXPECT_TRUE(stage[2].parameter.value.device().has_data());
      dp.begin_step(1);
      EXPECT_FALSE(stage[2].parameter.value.device().has_data());
    }
  });
}

}  // namespace
}  // namespace megatron::parallel
