// Learning rates of a model that is wider than the model for which they were chosen.
#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

// A matrix between embedding and output, a bias and the embedding after two steps.
std::vector<std::vector<float>> run(OptimizerConfig config, double width_multiplier, double rate) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Arena& arena = runtime.arena(MemoryClass::parameters);
  config.clip_grad = 0;
  std::vector<parallel::ParameterSpec> placed(3);
  std::vector<parallel::Shard> shards;
  const Shape shapes[] = {{2, 3}, {3}, {4, 3}};
  for (size_t i = 0; i < placed.size(); ++i) {
    parallel::ParameterSpec& spec = placed[i];
    const std::string name = "p" + std::to_string(i);
    spec.parameter.name = name;
    spec.parameter.value = Tensor::empty(arena, shapes[i], DType::f32, name);
    spec.whole = shapes[i];
    spec.placement.tensors = {{.name = name, .global = shapes[i]}};
    spec.width_multiplier = width_multiplier;
    spec.grows_both_ways = i == 0;
    if (i == 2) spec.role = parallel::Role::embedding;
    Tensor gradient = Tensor::empty(arena, shapes[i], DType::f32, name + ".gradient");
    std::vector<float> values;
    for (int64_t k = 0; k < shapes[i].elements(); ++k) values.push_back(1e-7f * float(k + 1));
    copy_from(gradient, std::span<const float>(values));
    std::fill(values.begin(), values.end(), 0.5f);
    copy_from(spec.parameter.value, std::span<const float>(values));
    shards.push_back({&spec, 0, spec.parameter.value, gradient});
  }
  Optimizer optimizer(shards, config, {}, runtime);
  for (int step = 0; step < 2; ++step) {
    optimizer.find_norm(1);
    optimizer.update({.learning_rate = rate, .weight_decay = 0});
  }
  std::vector<std::vector<float>> values;
  for (const parallel::Shard& shard : shards) values.push_back(to_floats(shard.value));
  return values;
}

// Gradients are as small as eps, so that eps affects the result.
TEST(MuP, ScalesRatesAndEpsilonOfAdam) {
  const OptimizerConfig config{.adam_eps = 1e-7};
  OptimizerConfig narrow = config;
  narrow.adam_eps /= 4;
  const auto wide = run(config, 4, 1e-2), same = run(config, 1, 1e-2),
             scaled = run(narrow, 1, 1e-2 / 4);
  EXPECT_EQ(wide[0], scaled[0]);
  EXPECT_EQ(wide[1], same[1]);
  EXPECT_EQ(wide[2], same[2]);
  EXPECT_NE(wide[0], same[0]);
}

TEST(MuP, ScalesRatesOfMatricesOrOfAllElse) {
  const OptimizerConfig sgd{.method = Method::sgd}, lion{.method = Method::lion};
  EXPECT_EQ(run(sgd, 4, 1e3)[0], run(sgd, 1, 1e3)[0]);
  EXPECT_EQ(run(sgd, 4, 1e3)[1], run(sgd, 1, 4e3)[1]);
  EXPECT_EQ(run(sgd, 4, 1e3)[2], run(sgd, 1, 4e3)[2]);
  EXPECT_EQ(run(lion, 4, 1e-2)[0], run(lion, 1, 1e-2 / 4)[0]);
  EXPECT_EQ(run(lion, 4, 1e-2)[1], run(lion, 1, 1e-2)[1]);
}

// Muon's update scales with the matrix; Adam handles the other parameters.
TEST(MuP, LeavesMuonsMatrices) {
  const OptimizerConfig muon{.method = Method::muon};
  EXPECT_EQ(run(muon, 4, 1e-2)[0], run(muon, 1, 1e-2)[0]);
}

}  // namespace
}  // namespace megatron::optim
