#include "training/plan/many_layers.h"

#include <gtest/gtest.h>

#include "training/plan/make_plan.h"
#include "unit/training/small_settings.h"

namespace megatron::training {
namespace {

plan::Plan plan_of(settings::TrainSettings s, int64_t layers) {
  s.shape.num_layers = layers;
  s.runtime.device = "cpu";
  return make_plan(s, {});
}

// Compares activations without the holes between their blocks.
void expect_alike(const plan::MemoryUse& a, const plan::MemoryUse& b) {
  for (size_t i = 0; i < a.arenas.size(); ++i) {
    const auto bytes = static_cast<double>(b.arenas[i]);
    if (i == static_cast<size_t>(MemoryClass::activations))
      EXPECT_NEAR(static_cast<double>(a.arenas[i]), bytes, 0.01 * bytes);
    else EXPECT_EQ(a.arenas[i], b.arenas[i]) << i;
  }
  EXPECT_EQ(a.host, b.host);
}

constexpr Depths kDepths{{256, 512, 768}, 1280};

// Extrapolates three depths to a fourth, and compares with a run of that depth.
void expect_exact(const settings::TrainSettings& s) {
  const Depths depths = kDepths;
  std::array<plan::Plan, 3> plans;
  for (size_t i = 0; i < plans.size(); ++i) plans[i] = plan_of(s, depths.layers[i]);
  const plan::Plan whole = plan_of(s, depths.all);
  plan::Plan unfilled = whole;
  unfilled.memory = {};
  unfilled.stages.clear();
  unfilled.kernels.clear();
  unfilled.traffic.clear();
  unfilled.parameters.clear();
  const auto deep = deepened(plans, depths, unfilled);
  ASSERT_TRUE(deep.has_value());
  EXPECT_FALSE(deep->exact);
  expect_alike(deep->memory, whole.memory);
  ASSERT_EQ(deep->stages.size(), whole.stages.size());
  for (size_t i = 0; i < whole.stages.size(); ++i) expect_alike(deep->stages[i], whole.stages[i]);
  ASSERT_EQ(deep->parameters.size(), whole.parameters.size());
  for (size_t i = 0; i < whole.parameters.size(); ++i) {
    EXPECT_EQ(deep->parameters[i].span, whole.parameters[i].span);
    EXPECT_EQ(deep->parameters[i].group, whole.parameters[i].group);
    EXPECT_EQ(deep->parameters[i].count, whole.parameters[i].count);
  }
  ASSERT_EQ(deep->kernels.size(), whole.kernels.size());
  for (size_t i = 0; i < whole.kernels.size(); ++i) {
    EXPECT_EQ(deep->kernels[i].kernel, whole.kernels[i].kernel);
    EXPECT_EQ(deep->kernels[i].calls, whole.kernels[i].calls) << whole.kernels[i].kernel;
    EXPECT_DOUBLE_EQ(deep->kernels[i].cost.flops, whole.kernels[i].cost.flops);
    EXPECT_DOUBLE_EQ(deep->kernels[i].cost.bytes, whole.kernels[i].cost.bytes);
  }
  ASSERT_EQ(deep->traffic.size(), whole.traffic.size());
  for (size_t i = 0; i < whole.traffic.size(); ++i)
    EXPECT_DOUBLE_EQ(deep->traffic[i].bytes, whole.traffic[i].bytes);
}

TEST(ManyLayers, OfOneRank) { expect_exact(small_settings()); }

TEST(ManyLayers, Recomputed) {
  settings::TrainSettings s = small_settings();
  s.recompute.granularity = "full";
  s.recompute.method = "uniform";
  s.recompute.num_layers = 2;
  expect_exact(s);
}

TEST(ManyLayers, OfTensorParallelRanksAndAPipeline) {
  settings::TrainSettings s = small_settings();
  s.parallel.tensor_parallel = 2;
  s.parallel.pipeline_parallel = 2;
  s.batch.global_batch_size = 8;
  expect_exact(s);
}

TEST(ManyLayers, WhatDoesNotGrowAlikeIsNotTaken) {
  const Depths depths = kDepths;
  std::array<plan::Plan, 3> plans;
  for (size_t i = 0; i < plans.size(); ++i) plans[i] = plan_of(small_settings(), depths.layers[i]);
  EXPECT_TRUE(deepened(plans, depths, {}).has_value());
  auto other = plans;
  other[1].memory.arenas[0] += other[1].memory.arenas[0] / 10;
  EXPECT_FALSE(deepened(other, depths, {}).has_value());
  other = plans;
  other[2].kernels[0].calls += 1;
  EXPECT_FALSE(deepened(other, depths, {}).has_value());
  other = plans;
  other[0].kernels.pop_back();
  EXPECT_FALSE(deepened(other, depths, {}).has_value());
}

TEST(ManyLayers, DepthsAreDividedAsTheWhole) {
  settings::TrainSettings s = small_settings();
  EXPECT_FALSE(depths_for(s, 8192).has_value());
  s.parallel.pipeline_parallel = 3;
  s.recompute.num_layers = 5;
  const auto depths = depths_for(s, 60000);
  ASSERT_TRUE(depths.has_value());
  const int64_t apart = depths->layers[1] - depths->layers[0];
  EXPECT_EQ(depths->layers[2] - depths->layers[1], apart);
  EXPECT_EQ(apart % 15, 0);
  EXPECT_EQ((60000 - depths->layers[2]) % apart, 0);
  EXPECT_LT(depths->layers[2], 4096);
}

// A kernel's time grows with its operations, or with its bytes if it has no operations.
TEST(ManyLayers, TimesGrowWithTheWork) {
  plan::Plan timed, deep;
  timed.step_seconds = 1;
  timed.peak = 5;
  timed.kernels = {{"gemm", DType::f32, 1, {10, 7}, 0.6}, {"copy", DType::f32, 1, {0, 4}, 0.2}};
  deep.kernels = {{"gemm", DType::f32, 9, {30, 7}}, {"copy", DType::f32, 9, {0, 20}}};
  take_time(deep, timed);
  EXPECT_DOUBLE_EQ(*deep.kernels[0].seconds, 1.8);
  EXPECT_DOUBLE_EQ(*deep.kernels[1].seconds, 1.0);
  EXPECT_DOUBLE_EQ(*deep.step_seconds, 2.8 / 0.8);
  EXPECT_EQ(deep.peak, 5);
}

}  // namespace
}  // namespace megatron::training
