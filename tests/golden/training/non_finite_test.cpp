// The first NaN or infinity of a step, planted and found.
#include "training/non_finite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "comm/threads.h"
#include "golden/training/support.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

HostBatch batch(int first, float weight = 1) {
  HostBatch b{.sequences = 2, .length = 16};
  for (int i = 0; i < 32; ++i) {
    b.tokens.push_back((first + i * 7) % 90);
    b.labels.push_back((first + i * 7 + 7) % 90);
    b.positions.push_back(i % 16);
    b.loss_mask.push_back(weight);
  }
  b.samples = {first, first + 1};
  return b;
}

// What a span's parameters are made to be while a pass of it runs.
struct Planter final : SpanListener {
  std::function<void(const Span&, Pass, bool enters)> plant;
  void enter(const Span& span, Pass pass) override { plant(span, pass, true); }
  void leave(const Span& span, Pass pass) override { plant(span, pass, false); }
};

struct Options {
  bool recompute = false, llama = true;
  DType type = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  SpanListener* spans = nullptr;
};

// A model and its step, of one rank.
struct Trained {
  Trained(comm::Group& ranks, const Options& options)
      : group(ranks),
        runtime({options.device, 0}, 1),
        config(shape(options)),
        trained(config, options.type, 1, {}, ranks, runtime,
                {.recompute = options.recompute ? recomputed_layers() : models::RecomputeOptions(),
                 .spans = options.spans}) {
    trained.initialize(1);
    step->begin({});
  }
  static models::GptConfig shape(const Options& options) {
    TrainSettings s = options.llama ? tiny_llama() : tiny_gpt2();
    s.shape.hidden_dropout = s.shape.attention_dropout = 0.1;
    models::GptConfig config = s.shape.to_config(*s.batch.seq_length);
    config.finalize();
    return config;
  }

  Parameter& parameter(const std::string& name) {
    for (parallel::Placed* placed : model.parameters())
      if (placed->parameter.name == name) return placed->parameter;
    throw InternalError("no parameter " + name);
  }
  void set(const std::string& name, size_t index, double value) {
    Tensor& t = parameter(name).value;
    std::vector<double> values = to_doubles(t);
    values.at(index) = value;
    copy_from(t, values);
  }
  void multiply(const std::string& name, double factor) {
    Tensor& t = parameter(name).value;
    std::vector<double> values = to_doubles(t);
    for (double& v : values) v *= factor;
    copy_from(t, values);
  }
  // Parameters and the optimizer's state.
  std::vector<std::vector<double>> state() {
    std::vector<std::vector<double>> all;
    for (const parallel::Placed* placed : model.parameters())
      all.push_back(to_doubles(placed->parameter.value));
    for (const auto& s : step->optimizer().states()) all.push_back(to_doubles(s.value));
    return all;
  }
  StepReport run(const std::vector<HostBatch>& batches) { return step->run(batches, {1e-3, 0.01}); }
  std::string search(const std::vector<HostBatch>& batches) {
    return first_non_finite(*step, batches, group, runtime);
  }

  comm::Group& group;
  Runtime runtime;
  models::GptConfig config;
  TrainedModel trained;
  const models::GptModel& model = trained.parts.whole();
  TrainStep* step = &trained.step;
};

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

class FirstNonFinite : public ::testing::Test {
 protected:
  std::unique_ptr<comm::Group> alone = comm::single();
  std::vector<HostBatch> batches = {batch(0), batch(10), batch(20)};
};

TEST_F(FirstNonFinite, OfAParameterNamesItAndTheLayerThatReadIt) {
  for (const auto& [value, text] :
       {std::pair{kInfinity, "inf"}, {-kInfinity, "-inf"}, {kNan, "nan"}}) {
    Trained t(*alone, {});
    t.set("layers.1.mlp.up.weight", 3 * 32 + 5, value);
    EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
    expect_in(t.search(batches),
              {"gemm in layers.1 (forward of micro-batch 0, samples 0 to 1, rank 0) wrote to out [",
               "was already " + std::string(text) + " at [3, 5]", "f32 = layers.1.mlp.up.weight",
               "the parameter layers.1.mlp.up.weight [96, 32] was " + std::string(text) +
                   " at [3, 5] before the step"});
  }
}

TEST_F(FirstNonFinite, OfAnOverflowNamesTheKernelAndItsInputs) {
  Trained t(*alone, {});
  t.multiply("layers.1.mlp.up.weight", 1e22);  // the product of gate and up is not finite
  EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
  const std::string text = t.search(batches);
  expect_in(text, {"activation in layers.1 (forward of micro-batch 0", "wrote to out [", "inf at [",
                   "it read x [", "e+2", "all finite"});
  EXPECT_EQ(text.find("before the step"), std::string::npos) << text;
}

TEST_F(FirstNonFinite, OfALaterMicroBatchTellsItsSamples) {
  Trained t(*alone, {});
  for (size_t i = 0; i < 32; ++i)
    t.set("embedding.weight", 91 * 32 + i, kNan);  // of no batch but the second
  batches[1].tokens[7] = 91;
  EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
  expect_in(t.search(batches),
            {"embedding in embedding (forward of micro-batch 1, samples 10 to 11",
             "wrote to out [32, 32] f32 nan at [7, 0], 32 elements in all",
             "its table [97, 32] f32 = embedding.weight was already nan at [91, 0]"});
}

TEST_F(FirstNonFinite, OfAnOverflowOfSixteenBits) {
  Trained t(*alone, {.llama = false, .type = DType::bf16});
  t.multiply("layers.0.mlp.up.weight", 1e30);
  t.multiply("layers.0.mlp.down.weight", 1e12);
  EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
  expect_in(t.search(batches), {"gemm in layers.0 (forward", "wrote to out [32, 32] bf16 ",
                                "= layers.0.mlp.down.weight"});
}

TEST_F(FirstNonFinite, OfBackwardAlone) {
  Planter planter;
  Trained t(*alone, {.spans = &planter});
  planter.plant = [&](const Span& span, Pass pass, bool enters) {
    if (span.name == "layers.0" && pass == Pass::backward)
      t.multiply("layers.0.mlp.down.weight", enters ? 0x1p120 : 0x1p-120);
  };
  for (HostBatch& b : batches) std::ranges::fill(b.loss_mask, 0x1p30f);
  const auto before = t.state();
  EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
  expect_in(t.search(batches), {"gemm in layers.0 (backward of micro-batch 0", "wrote to out [",
                                "= layers.0.mlp.down.weight up to", "all finite"});
  EXPECT_EQ(t.state(), before);
}

TEST_F(FirstNonFinite, OfRecomputeAndOfTheGradientsAfterIt) {
  for (const bool backward : {false, true}) {
    Planter planter;
    Trained t(*alone, {.recompute = true, .spans = &planter});
    const Pass planted = backward ? Pass::backward : Pass::recompute;
    planter.plant = [&](const Span& span, Pass pass, bool enters) {
      if (span.name != "layers.1" || pass == Pass::forward) return;
      // Of backward: as soon as the recomputed forward has ended.
      const bool begin = backward ? pass == Pass::recompute && !enters : pass == planted && enters;
      const bool end = pass == planted && !enters;
      const std::string weight = backward ? "layers.1.mlp.down.weight" : "layers.1.mlp.up.weight";
      if (begin) t.multiply(weight, 0x1p100);
      if (end) t.multiply(weight, 0x1p-100);
    };
    if (backward)
      for (HostBatch& b : batches) std::ranges::fill(b.loss_mask, 0x1p50f);
    EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
    expect_in(t.search(batches), {backward ? "gemm in layers.1 (backward of micro-batch 0"
                                           : "activation in layers.1 (recompute of micro-batch 0"});
  }
}

TEST_F(FirstNonFinite, OfOneRankIsToldToAllAndTheEarliestWins) {
  for (const bool both : {false, true}) {
    std::vector<std::string> texts(2);
    comm::run_ranks(2, [&](comm::Group& ranks) {
      Trained t(ranks, {});
      if (ranks.rank() == 1) t.set("layers.0.attention.qkv.weight", 0, kNan);
      if (ranks.rank() == 0 && both) t.set("layers.1.attention.qkv.weight", 0, kNan);
      const std::vector<HostBatch> mine = {batch(ranks.rank() * 100),
                                           batch(ranks.rank() * 100 + 2)};
      EXPECT_EQ(t.run(mine).outcome, StepOutcome::not_finite);
      texts[static_cast<size_t>(ranks.rank())] = t.search(mine);
    });
    expect_in(texts[0], {"gemm in layers.0 (forward of micro-batch 0, samples 100 to 101, rank 1)",
                         "layers.0.attention.qkv.weight"});
    EXPECT_EQ(texts[0], texts[1]);
  }
}

// Twice a gradient just below the largest number.
TEST_F(FirstNonFinite, OfTheSumOverRanks) {
  double largest = 0;
  {
    Trained t(*alone, {});
    double divisor = 0;
    t.step->accumulate(std::vector{batch(0)}, divisor);
    for (const parallel::Placed* placed : t.model.parameters())
      for (const double g : to_doubles(placed->parameter.uses[0].grad))
        largest = std::max(largest, std::abs(g));
  }
  const auto weight = static_cast<float>(2.5e38 / largest);
  std::vector<std::string> texts(2);
  comm::run_ranks(2, [&](comm::Group& ranks) {
    Trained t(ranks, {});
    const std::vector<HostBatch> mine = {batch(0, weight)};
    EXPECT_EQ(t.run(mine).outcome, StepOutcome::not_finite);
    texts[static_cast<size_t>(ranks.rank())] = t.search(mine);
  });
  expect_in(texts[0], {"the reduction of gradients: of ",
                       "each rank's own is finite, and the sum "
                       "over 2 ranks is "});
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_F(FirstNonFinite, WhatIsFiniteAgainIsToldAsSuch) {
  Trained t(*alone, {});
  t.set("output.weight", 0, kNan);
  EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
  t.set("output.weight", 0, 0);
  expect_in(t.search(batches), {"made again, gave a finite loss of 4."});
}

TEST_F(FirstNonFinite, LeavesNoTrace) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Trained failed(*alone, {.type = type}), other(*alone, {.type = type});
    for (Trained* t : {&failed, &other}) EXPECT_TRUE(t->run({batch(0), batch(2)}).updated());
    const double weight = to_doubles(failed.parameter("layers.0.mlp.up.weight").value)[7];
    failed.set("layers.0.mlp.up.weight", 7, kInfinity);
    const auto before = failed.state();
    EXPECT_EQ(failed.run(batches).outcome, StepOutcome::not_finite);
    failed.search(batches);
    EXPECT_EQ(failed.runtime.stream().watcher(), nullptr);
    EXPECT_EQ(failed.state(), before);
    EXPECT_EQ(failed.step->optimizer().steps(), 1);
    failed.set("layers.0.mlp.up.weight", 7, weight);
    for (Trained* t : {&failed, &other}) EXPECT_TRUE(t->run({batch(4), batch(6)}).updated());
    EXPECT_EQ(failed.state(), other.state());
  }
}

// An overflow of the loss scale is wanted now and then: nothing is looked for, and the run goes on.
TEST(OnNonFinite, AnOverflowOfTheLossScaleIsNoFinding) {
  const TemporaryDirectory folder;
  TrainSettings s = tiny_llama();
  s.precision.fp16 = true;
  s.log.log_jsonl = folder / "log.jsonl";
  const TrainResult result = train(s);
  ASSERT_EQ(result.iterations.size(), 5);
  EXPECT_EQ(result.iterations[0].outcome, StepOutcome::overflow);
  EXPECT_EQ(read_file(folder / "log.jsonl").find("First"), std::string::npos);
}

// A step too far: the weights of the next one are too large.
TrainSettings diverging() {
  TrainSettings s = tiny_llama();
  s.optimizer.lr = 1e30;
  s.optimizer.lr_decay_style = optim::DecayStyle::constant;
  s.optimizer.config.method = optim::Method::sgd;
  s.optimizer.config.clip_grad = 0;
  return s;
}

TEST(OnNonFinite, StopNamesTheFinding) {
  for (const int64_t ranks : {1, 2}) {
    TrainSettings s = diverging();
    s.runtime.ranks = ranks;
    try {
      train(s);
      FAIL() << "the run ended well";
    } catch (const Error& error) {
      expect_in(error.what(), {"iteration 2: the loss is ", "First: ",
                               "add_rms_norm_backward in head (backward of micro-batch 0", "--lr",
                               "--on-non-finite skip"});
    }
  }
}

TEST(OnNonFinite, SkipGoesOnAndLeavesTheWeights) {
  const TemporaryDirectory folder;
  TrainSettings s = diverging();
  s.precision.on_non_finite = OnNonFinite::skip;
  s.checkpoint.save = folder / "save";
  s.checkpoint.save_interval = 1;
  s.batch.train_iters = 4;
  const TrainResult result = train(s);
  ASSERT_EQ(result.iterations.size(), 4);
  EXPECT_EQ(result.iterations[0].outcome, StepOutcome::updated);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(result.iterations[i].outcome, StepOutcome::not_finite);
    EXPECT_EQ(result.iterations[i].consumed, 8 * static_cast<int64_t>(i + 1));
  }
  const auto weights = [&](int i) {
    return read_file(fmt::format("{}/iter_{:07}/model.safetensors", folder / "save", i));
  };
  EXPECT_EQ(weights(1), weights(4));
  const Json state = Json::read(folder / "save/iter_0000004/trainer_state.json");
  EXPECT_EQ(state["consumed_samples"].as_integer(), 32);
  EXPECT_EQ(state["scheduled_samples"].as_integer(), 8);
  EXPECT_EQ(state["skipped_steps"].as_integer(), 3);
  const std::string log = read_file(folder / "save/log.jsonl");
  expect_in(log, {"the step is left out. First: ", "the step is left out (3 so far)"});
}

TEST(OnNonFinite, WithoutTheCheckTheRunGoesOnAsMegatronDoes) {
  TrainSettings s = diverging();
  s.precision.check_for_nan_in_loss_and_grad = false;
  const TrainResult result = train(s);
  ASSERT_EQ(result.iterations.size(), 5);
  EXPECT_FALSE(std::isfinite(result.iterations.back().loss));
  for (const IterationReport& report : result.iterations)
    EXPECT_EQ(report.outcome, StepOutcome::updated);
}

}  // namespace
}  // namespace megatron::training
