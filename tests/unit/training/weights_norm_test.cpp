// Initial weights selected by a flag, and their norm.
#include "training/weights_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "models/model_flags.h"
#include "models/stage.h"
#include "settings/run_settings.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

models::ModelFlags small_model() {
  return {.num_layers = 1,
          .hidden_size = 32,
          .num_attention_heads = 4,
          .max_position_embeddings = 16,
          .vocab_size = 200};
}

std::unique_ptr<models::Stage> initialized(const models::ModelFlags& flags, Runtime& runtime) {
  auto whole = models::model_from_flags(flags, 16).build(runtime, DType::f32, 1);
  models::initialize(*whole, 1, runtime.stream());
  return whole;
}

struct Spread {
  double largest = 0, deviation = 0;
};

Spread spread(const Tensor& weights) {
  Spread s;
  double squares = 0;
  for (int64_t i = 0; i < weights.elements(); ++i) {
    const double x = weights.data<float>()[i];
    s.largest = std::max(s.largest, std::abs(x));
    squares += x * x;
  }
  s.deviation = std::sqrt(squares / static_cast<double>(weights.elements()));
  return s;
}

TEST(InitialWeights, AreUniformWithXavier) {
  models::ModelFlags flags = small_model();
  flags.init_method_xavier_uniform = true;
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  const auto whole = initialized(flags, runtime);
  int matrices = 0;
  for (const parallel::ParameterSpec* placed : whole->parameters()) {
    const Tensor& w = placed->parameter.value;
    if (w.shape().rank() != 2) continue;
    ++matrices;
    const double a = std::sqrt(6.0 / static_cast<double>(w.size(0) + w.size(1)));
    const Spread s = spread(w);
    EXPECT_LE(s.largest, a) << placed->parameter.name;
    EXPECT_GT(s.largest, 0.97 * a) << placed->parameter.name;
    EXPECT_NEAR(s.deviation, a / std::sqrt(3.0), 0.05 * a) << placed->parameter.name;
  }
  EXPECT_EQ(matrices, 6);
}

TEST(InitialWeights, OfEmbeddingsHaveTheirOwnDeviation) {
  models::ModelFlags flags = small_model();
  flags.embedding_init_method_std = 0.5;
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  const auto whole = initialized(flags, runtime);
  for (const parallel::ParameterSpec* placed : whole->parameters()) {
    const std::string& name = placed->parameter.name;
    if (placed->parameter.value.shape().rank() != 2) continue;
    const bool embedding = name.find("embedding.") != name.npos;
    const double deviation = spread(placed->parameter.value).deviation;
    EXPECT_TRUE(embedding ? std::abs(deviation - 0.5) < 0.05 : deviation < 0.03) << name;
  }
}

TEST(WeightsNorm, IsThatOfAllElements) {
  const models::Model definition = models::model_from_flags(small_model(), 16);
  for (const DType type : {DType::f32, DType::bf16}) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    const auto alone = comm::single();
    TrainedModel model(definition, type, 1, {}, *alone, runtime, {});
    model.initialize(1);
    double sum = 0;
    for (const parallel::ParameterSpec* placed : model.parts.parameters()) {
      const Tensor& w = placed->parameter.value;
      for (int64_t i = 0; i < w.elements(); ++i) {
        const double x =
            type == DType::f32 ? w.data<float>()[i] : static_cast<double>(float(w.data<bf16>()[i]));
        sum += x * x;
      }
    }
    EXPECT_NEAR(weights_norm(model.shards(), model.ranks, runtime), std::sqrt(sum),
                1e-12 * std::sqrt(sum));
  }
}

TEST(Evaluations, BeginWhereTheyAreAsked) {
  settings::RunSettings run;
  run.eval_interval = 10;
  EXPECT_EQ(run.evaluations_before(10), 0);
  EXPECT_EQ(run.evaluations_before(30), 2);
  EXPECT_EQ(run.evaluations_before(31), 3);
  run.start_eval_at_iter = 25;
  EXPECT_FALSE(run.evaluates_after(20));
  EXPECT_TRUE(run.evaluates_after(30));
  EXPECT_EQ(run.evaluations_before(30), 0);
  EXPECT_EQ(run.evaluations_before(41), 2);
  run.iterations_to_skip = {"7", "3"};
  EXPECT_EQ(run.skipped(), (std::vector<int64_t>{3, 7}));
  run.iterations_to_skip = {"x"};
  EXPECT_THROW(run.skipped(), Error);
}

}  // namespace
}  // namespace megatron::training
