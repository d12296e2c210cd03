// Plants the first NaN or infinity of a step and finds it.
#include "training/non_finite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "comm/threads.h"
#include "comm/values.h"
#include "golden/training/support.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

corpus::HostBatch batch(int first, float weight = 1) {
  corpus::HostBatch b{.layout = {.sequences = 2, .length = 16}};
  for (int i = 0; i < 32; ++i) {
    b.tokens.push_back((first + i * 7) % 90);
    b.labels.push_back((first + i * 7 + 7) % 90);
    b.positions.push_back(i % 16);
    b.loss_mask.push_back(weight);
  }
  b.sample_ids = {first, first + 1};
  return b;
}

// Replaces a span's parameters while one of its passes runs.
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
  int64_t layers = 2;
  ModelLayout layout;
};

void multiply(Tensor& tensor, double factor) {
  std::vector<double> values = to_doubles(tensor);
  for (double& v : values) v *= factor;
  copy_from(tensor, values);
}

// One rank's model and its training step.
struct Trained {
  Trained(comm::Group& ranks, const Options& options)
      : group(ranks),
        runtime({options.device, 0}, 1),
        definition(shape(options)),
        trained(definition, options.type, 1, options.layout, ranks, runtime,
                {.recompute = options.recompute ? recomputed_layers() : models::RecomputeOptions(),
                 .data_parallel = {.sharding = options.layout.ranks.sharding},
                 .spans = options.spans}) {
    trained.initialize(1);
    step->begin({});
  }
  static models::Model shape(const Options& options) {
    settings::TrainSettings s = options.llama ? tiny_llama() : tiny_gpt2();
    s.shape.num_layers = options.layers;
    s.shape.hidden_dropout = s.shape.attention_dropout = 0.1;
    return models::model_from_flags(s.shape, *s.batch.seq_length);
  }

  Parameter& parameter(const std::string& name) {
    for (parallel::ParameterSpec* placed : trained.parts.parameters())
      if (placed->parameter.name == name) return placed->parameter;
    throw InternalError("no parameter " + name);
  }
  void set(const std::string& name, size_t index, double value) {
    Tensor& t = parameter(name).value;
    std::vector<double> values = to_doubles(t);
    values.at(index) = value;
    copy_from(t, values);
  }
  // The last rank that holds part of a parameter. Collective.
  int last_with(const std::string& name) {
    double last = -1;
    for (const parallel::Shard& shard : trained.shards())
      if (shard.placed->parameter.name == name && shard.size() > 0) last = group.rank();
    comm::largest(group, runtime.stream(), {&last, 1}, "last");
    return static_cast<int>(last);
  }
  void multiply(const std::string& name, double factor) {
    training::multiply(parameter(name).value, factor);
  }
  // Multiplies this rank's part of a parameter, if it has one, by `factor` and adds `more` to its
  // last element.
  void change(const std::string& name, double factor, double more) {
    for (const parallel::Shard& shard : trained.shards()) {
      if (shard.placed->parameter.name != name || shard.size() == 0) continue;
      Tensor kept = shard.value;
      std::vector<double> values = to_doubles(kept);
      for (double& v : values) v *= factor;
      values.back() += more;
      copy_from(kept, values);
    }
    step->data_parallel().parameters_changed();
  }
  // Parameters and optimizer state.
  std::vector<std::vector<double>> state() {
    std::vector<std::vector<double>> all;
    for (const parallel::ParameterSpec* placed : trained.parts.parameters())
      all.push_back(to_doubles(placed->parameter.value));
    for (const auto& s : step->optimizer().states()) all.push_back(to_doubles(s.value));
    return all;
  }
  StepReport run(const std::vector<corpus::HostBatch>& batches) {
    return step->run(batches, {1e-3, 0.01});
  }
  std::string search(const std::vector<corpus::HostBatch>& batches) {
    return first_non_finite(*step, batches, group, runtime);
  }

  comm::Group& group;
  Runtime runtime;
  models::Model definition;
  TrainedModel trained;
  TrainStep* step = &trained.step;
};

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

class FirstNonFinite : public ::testing::Test {
 protected:
  std::unique_ptr<comm::Group> alone = comm::single();
  // Largest gradient of a step with one micro-batch.
  double largest_gradient() {
    Trained t(*alone, {});
    double divisor = 0, largest = 0;
    t.step->accumulate(std::vector{batch(0)}, divisor);
    for (const parallel::ParameterSpec* placed : t.trained.parts.parameters())
      for (const double g : to_doubles(placed->parameter.uses[0].grad))
        largest = std::max(largest, std::abs(g));
    return largest;
  }

  std::vector<corpus::HostBatch> batches = {batch(0), batch(10), batch(20)};
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
    t.set("embedding.weight", 91 * 32 + i, kNan);  // occurs only in the second batch
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
  for (corpus::HostBatch& b : batches) std::ranges::fill(b.loss_mask, 0x1p30f);
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
      // In backward it is planted at the end of the recomputed forward pass.
      const bool begin = backward ? pass == Pass::recompute && !enters : pass == planted && enters;
      const bool end = pass == planted && !enters;
      const std::string weight = backward ? "layers.1.mlp.down.weight" : "layers.1.mlp.up.weight";
      if (begin) t.multiply(weight, 0x1p100);
      if (end) t.multiply(weight, 0x1p-100);
    };
    if (backward)
      for (corpus::HostBatch& b : batches) std::ranges::fill(b.loss_mask, 0x1p50f);
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
      const std::vector<corpus::HostBatch> mine = {batch(ranks.rank() * 100),
                                                   batch(ranks.rank() * 100 + 2)};
      EXPECT_EQ(t.run(mine).outcome, StepOutcome::not_finite);
      texts[static_cast<size_t>(ranks.rank())] = t.search(mine);
    });
    expect_in(texts[0], {"gemm in layers.0 (forward of micro-batch 0, samples 100 to 101, rank 1)",
                         "layers.0.attention.qkv.weight"});
    EXPECT_EQ(texts[0], texts[1]);
  }
}

// The sum of two gradients just below the largest finite number overflows.
TEST_F(FirstNonFinite, OfTheSumOverRanks) {
  const auto weight = static_cast<float>(2.5e38 / largest_gradient());
  std::vector<std::string> texts(2);
  comm::run_ranks(2, [&](comm::Group& ranks) {
    Trained t(ranks, {});
    const std::vector<corpus::HostBatch> mine = {batch(0, weight)};
    EXPECT_EQ(t.run(mine).outcome, StepOutcome::not_finite);
    texts[static_cast<size_t>(ranks.rank())] = t.search(mine);
  });
  expect_in(texts[0], {"the reduction of gradients: ",
                       "and those of the other ranks are finite, but the sum over ranks is "});
  EXPECT_EQ(texts[0], texts[1]);
}

// Gradients are reduced after each micro-batch, so that the next one adds to an infinity.
TEST_F(FirstNonFinite, OfTheSumOverRanksWithinAStep) {
  const auto weight = static_cast<float>(2.5e38 / largest_gradient());
  std::vector<std::string> texts(2);
  comm::run_ranks(2, [&](comm::Group& ranks) {
    Trained t(ranks, {.layout = {.ranks = {.sharding = parallel::Sharding::gradients}}});
    const std::vector<corpus::HostBatch> mine = {batch(0, weight), batch(0)};
    EXPECT_EQ(t.run(mine).outcome, StepOutcome::not_finite);
    texts[static_cast<size_t>(ranks.rank())] = t.search(mine);
  });
  expect_in(texts[0], {"add ", " = the gradient of ", "no kernel of any rank produced it"});
  EXPECT_EQ(texts[0], texts[1]);
}

// The text before the rank, such as "gemm in layers.0 (forward of micro-batch 0, samples 0 to 1".
std::string call_of(const std::string& text) { return text.substr(0, text.find(", rank ")); }

struct Spread {
  const char* name;
  int ranks;
  parallel::RanksOptions options;
};
void PrintTo(const Spread& spread, std::ostream* out) { *out << spread.name; }

// Layouts whose data-parallel ranks all get the same micro-batches: the report equals that of one
// rank.
class FirstNonFiniteOf : public ::testing::TestWithParam<Spread> {
 protected:
  // The report of all ranks after `change` on each, with `plant` active during the step.
  using Change = std::function<void(Trained&)>;
  using Plant = std::function<void(Trained&, const Span&, Pass, bool enters)>;
  std::string text_of(const Spread& spread, const Change& change, const Plant& plant = {}) const {
    std::vector<std::string> texts(static_cast<size_t>(spread.ranks));
    comm::run_ranks(spread.ranks, [&](comm::Group& group) {
      Planter planter;
      Trained t(group, {.spans = &planter, .layers = 4, .layout = {.ranks = spread.options}});
      planter.plant = [&](const Span& span, Pass pass, bool enters) {
        if (plant) plant(t, span, pass, enters);
      };
      change(t);
      EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
      texts[static_cast<size_t>(group.rank())] = t.search(batches);
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    return texts[0];
  }
  // The report of this layout, which must name the same call as one rank's.
  std::string text_of(const Change& change, const Plant& plant = {}) const {
    const std::string text = text_of(GetParam(), change, plant);
    EXPECT_EQ(call_of(text), call_of(text_of({"", 1, {}}, change, plant)));
    return text;
  }

  std::vector<corpus::HostBatch> batches = {batch(0, kMany), batch(10, kMany), batch(20, kMany),
                                            batch(30, kMany)};
  static constexpr float kMany = 0x1p30f;  // makes numbers in backward large
};

TEST_P(FirstNonFiniteOf, ABadParameterOfOneRank) {
  for (const std::string name : {"layers.0.mlp.down.weight", "layers.3.attention.qkv.weight"}) {
    std::atomic<int> holder = 0;
    const std::string text = text_of([&](Trained& t) {
      const int last = t.last_with(name);
      holder = std::max(holder.load(), last);  // only in the layout with several ranks
      t.change(name, 1, t.group.rank() == last ? kNan : 0);
    });
    expect_in(text, {"gemm in " + name.substr(0, 8) + " (forward of micro-batch 0, samples 0 to 1",
                     " = " + name + " was already nan at [", "the parameter " + name + " [",
                     fmt::format("] of rank {} was nan at [", holder.load())});
  }
}

TEST_P(FirstNonFiniteOf, TheEarliestOfTwoBadParameters) {
  const std::string text = text_of([](Trained& t) {
    for (const char* name : {"layers.3.mlp.up.weight", "layers.1.mlp.down.weight"})
      t.change(name, 1, kInfinity);
  });
  expect_in(text, {"gemm in layers.1 (forward of micro-batch 0",
                   " = layers.1.mlp.down.weight was already inf at [",
                   "the parameter layers.1.mlp.down.weight ["});
}

TEST_P(FirstNonFiniteOf, AnOverflow) {
  for (const std::string layer : {"layers.0", "layers.3"}) {
    const std::string text =
        text_of([&](Trained& t) { t.change(layer + ".mlp.up.weight", 1e22, 0); });
    expect_in(text, {"activation in " + layer + " (forward of micro-batch 0", "all finite"});
    EXPECT_EQ(text.find("before the step"), std::string::npos) << text;
  }
}

TEST_P(FirstNonFiniteOf, AnOverflowOfBackward) {
  for (const std::string layer : {"layers.0", "layers.3"}) {
    const std::string weight = layer + ".mlp.down.weight";
    std::vector<Tensor> held(static_cast<size_t>(GetParam().ranks));
    const auto plant = [&](Trained& t, const Span& span, Pass pass, bool enters) {
      if (span.name != layer || pass != Pass::backward) return;
      Tensor& value = held[static_cast<size_t>(t.group.rank())];
      if (enters) value = t.parameter(weight).value;
      multiply(value, enters ? 0x1p120 : 0x1p-120);
    };
    const std::string text = text_of([](Trained&) {}, plant);
    expect_in(text, {"gemm in " + layer + " (backward of micro-batch 0", "all finite"});
  }
}

using parallel::ScheduleKind;
using parallel::Sharding;
INSTANTIATE_TEST_SUITE_P(
    Layouts, FirstNonFiniteOf,
    ::testing::Values(
        Spread{"TP", 2, {.layout = {.tp = 2}}},
        Spread{"TPTokensDivided", 2, {.layout = {.tp = 2}, .sequence = true}},
        Spread{"PP", 2, {.layout = {.pp = 2}, .pipeline = {.stages = 2}}},
        Spread{"PPOfFour", 4, {.layout = {.pp = 4}, .pipeline = {.stages = 4}}},
        Spread{
            "Interleaved", 2, {.layout = {.pp = 2}, .pipeline = {ScheduleKind::interleaved, 2, 2}}},
        Spread{"ZbV", 2, {.layout = {.pp = 2}, .pipeline = {ScheduleKind::zero_bubble_v, 2, 2}}},
        Spread{"ZbH1", 2, {.layout = {.pp = 2}, .pipeline = {ScheduleKind::zero_bubble_h1, 2}}},
        Spread{"ZeRO1", 2, {.sharding = Sharding::optimizer}},
        Spread{"ZeRO3", 2, {.sharding = Sharding::parameters}},
        Spread{"TPAndPP", 4, {.layout = {.tp = 2, .pp = 2}, .pipeline = {.stages = 2}}},
        Spread{"PPAndZeRO3",
               4,
               {.layout = {.pp = 2}, .pipeline = {.stages = 2}, .sharding = Sharding::parameters}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(FirstNonFinite, WhatIsFiniteAgainIsToldAsSuch) {
  Trained t(*alone, {});
  t.set("output.weight", 0, kNan);
  EXPECT_EQ(t.run(batches).outcome, StepOutcome::not_finite);
  t.set("output.weight", 0, 0);
  expect_in(t.search(batches), {"computed again, gave a finite loss of 4."});
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

// Occasional overflows are part of loss scaling: the run does not search for a cause, and
// continues.
TEST(OnNonFinite, AnOverflowOfTheLossScaleIsNoFinding) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny_llama();
  s.precision.fp16 = true;
  s.log.log_jsonl = folder / "log.jsonl";
  const TrainResult result = train(s);
  ASSERT_EQ(result.iterations.size(), 5);
  EXPECT_EQ(result.iterations[0].outcome, StepOutcome::overflow);
  EXPECT_EQ(read_file(folder / "log.jsonl").find("First"), std::string::npos);
}

// The learning rate is so large that the weights overflow in the next step.
settings::TrainSettings diverging() {
  settings::TrainSettings s = tiny_llama();
  s.optimizer.lr = 1e30;
  s.optimizer.lr_decay_style = optim::DecayStyle::constant;
  s.optimizer.config.method = optim::Method::sgd;
  s.optimizer.config.clip_grad = 0;
  return s;
}

TEST(OnNonFinite, StopNamesTheFinding) {
  for (const int64_t ranks : {1, 2}) {
    settings::TrainSettings s = diverging();
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
  settings::TrainSettings s = diverging();
  s.precision.on_non_finite = settings::OnNonFinite::skip;
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
  expect_in(log, {"the step is skipped. First: ", "the step is skipped (3 so far)"});
}

TEST(OnNonFinite, WithoutTheCheckTheRunGoesOnAsMegatronDoes) {
  settings::TrainSettings s = diverging();
  s.precision.check_for_nan_in_loss_and_grad = false;
  const TrainResult result = train(s);
  ASSERT_EQ(result.iterations.size(), 5);
  EXPECT_FALSE(std::isfinite(result.iterations.back().loss));
  for (const IterationReport& report : result.iterations)
    EXPECT_EQ(report.outcome, StepOutcome::updated);
}

}  // namespace
}  // namespace megatron::training
