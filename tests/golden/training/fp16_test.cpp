// fp16: overflows, the state after a skipped step, and the distance from fp32.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "checkpoint/model_directory.h"
#include "golden/training/support.h"
#include "resume/trainer_state.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

const TrainHooks kQuick{.peak = 1e12};  // no peak is measured

settings::TrainSettings tiny_fp16(double initial_scale = 65536) {
  settings::TrainSettings s = tiny_llama();
  s.precision.fp16 = true;
  s.precision.loss_scaling.initial = initial_scale;
  return s;
}

corpus::HostBatch batch(int64_t sequences, int64_t length, int64_t vocabulary) {
  corpus::HostBatch b{.layout = {.sequences = sequences, .length = length}};
  for (int64_t i = 0; i < sequences * length; ++i) {
    b.tokens.push_back(static_cast<int32_t>(i * 7 % vocabulary));
    b.labels.push_back(static_cast<int32_t>((i * 7 + 7) % vocabulary));
    b.positions.push_back(static_cast<int32_t>(i % length));
    b.loss_mask.push_back(1);
  }
  for (int64_t i = 0; i < sequences; ++i) b.sample_ids.push_back(i);
  return b;
}

// A model with which a test makes single steps.
struct Trial {
  explicit Trial(const settings::TrainSettings& s, bool check_finite = true)
      : definition(models::model_from_flags(s.shape, *s.batch.seq_length)),
        runtime({DeviceKind::cpu, 0}, 1) {
    trained.emplace(
        definition, s.precision.type(), 1, ModelLayout(), *group, runtime,
        StepOptions{.check_finite = check_finite, .loss_scale = s.precision.loss_scale()});
    trained->initialize(1);
    model = &trained->parts.whole();
    step = &trained->step;
    step->begin(s.optimizer.config);
  }
  StepReport run() {
    const std::vector<corpus::HostBatch> batches = {batch(2, 32, definition->vocab_size())};
    return step->run(batches, {1e-3, 0.1});
  }
  Parameter& parameter(std::string_view name) {
    for (parallel::ParameterSpec* placed : model->parameters())
      if (placed->parameter.name.find(name) != std::string::npos) return placed->parameter;
    throw InternalError("no such parameter");
  }
  // Everything that a step changes.
  std::vector<std::vector<double>> state() const {
    std::vector<std::vector<double>> all;
    for (const parallel::ParameterSpec* placed : model->parameters())
      all.push_back(to_doubles(placed->parameter.value));
    for (const auto& state : step->optimizer().states()) all.push_back(to_doubles(state.value));
    all.push_back({static_cast<double>(step->optimizer().steps())});
    return all;
  }

  models::Model definition;
  Runtime runtime;
  std::unique_ptr<comm::Group> group = comm::single();
  std::optional<TrainedModel> trained;
  const models::Stage* model = nullptr;
  TrainStep* step = nullptr;
};

bool same_state(const Trial& trial, const std::vector<std::vector<double>>& before) {
  const auto now = trial.state();
  for (size_t i = 0; i < now.size(); ++i)
    if (!same_bits(now[i], before[i])) return false;
  return now.size() == before.size();
}

TEST(Fp16, LossesAreNearThoseOfFp32) {
  for (const settings::TrainSettings& plain : {tiny_llama(), tiny_gpt2()}) {
    settings::TrainSettings s = plain;
    s.precision.fp16 = true;
    s.precision.loss_scaling.initial = 1024;
    // Each rounding adds u = 2^-11, and five steps of AdamW follow the same path.
    EXPECT_LE(distance(train_losses(s, kQuick), train_losses(plain, kQuick)), 4 * 0x1p-11);
  }
}

TEST(Fp16, AnOverflowHalvesTheScaleAndDoesNotAdvanceTheSchedule) {
  settings::TrainSettings s = tiny_fp16(0x1p36);
  s.batch.train_iters = 30;
  s.optimizer.lr_warmup_iters = 3;
  s.precision.loss_scaling.hysteresis = 2;
  const TrainResult result = train(s, kQuick);
  int64_t updates = 0;
  double scale = 0x1p36;
  for (const IterationReport& r : result.iterations) {
    EXPECT_EQ(r.loss_scale, scale) << r.iteration;
    EXPECT_EQ(r.consumed, 8 * r.iteration);
    EXPECT_TRUE(std::isfinite(r.loss));
    // Warm-up counts the samples of steps that update: 0, 1/3, 2/3, then cosine.
    if (updates <= 3) {
      EXPECT_DOUBLE_EQ(r.learning_rate, 5e-3 * static_cast<double>(updates) / 3) << r.iteration;
    }
    if (r.outcome == StepOutcome::updated) {
      ++updates;
    } else {
      EXPECT_EQ(r.outcome, StepOutcome::overflow);
      if (r.iteration > 1) scale /= 2;  // the hysteresis allows the first overflow
    }
  }
  EXPECT_EQ(result.iterations.front().outcome, StepOutcome::overflow);
  EXPECT_GT(updates, 3);
  EXPECT_LT(scale, 0x1p30);
}

TEST(Fp16, ASkippedStepLeavesEveryBit) {
  Trial trial(tiny_fp16(0x1p40));
  const auto before = trial.state();
  const StepReport report = trial.run();
  EXPECT_EQ(report.outcome, StepOutcome::overflow);
  EXPECT_FALSE(std::isfinite(report.gradient_norm));
  EXPECT_TRUE(same_state(trial, before));
}

// Puts an infinity into the weights between begin() and end(), while backward of layer 1 runs.
struct Planter final : StepListener {
  explicit Planter(Tensor& tensor) : weight(tensor), values(to_doubles(tensor)) {}
  void enter(const Span& span, Pass pass) override { plant(span, pass, INFINITY); }
  void leave(const Span& span, Pass pass) override { plant(span, pass, values[0]); }
  void plant(const Span& span, Pass pass, double value) {
    if (span.name != "layers.1" || pass != Pass::backward) return;
    std::vector<double> changed = values;
    changed[0] = value;
    copy_from(weight, changed);
  }

  Tensor& weight;
  std::vector<double> values;
};

// All later steps are bit-identical whether or not that step is part of the run.
TEST(Fp16, APlantedInfinityHalvesTheScaleAndChangesNothingElse) {
  settings::TrainSettings s = tiny_fp16(1024);
  s.precision.loss_scaling.hysteresis = 1;
  Trial planted(s), without(s);
  for (Trial* trial : {&planted, &without}) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(trial->run().updated());
  }
  const auto before = planted.state();
  Planter planter(planted.parameter("layers.1.mlp.down").value);
  planted.step->listen(&planter);
  const StepReport report = planted.run();
  planted.step->listen(nullptr);
  EXPECT_EQ(report.outcome, StepOutcome::overflow);
  EXPECT_TRUE(std::isfinite(report.loss));
  EXPECT_EQ(report.loss_scale, 1024);
  EXPECT_EQ(planted.step->loss_scale().value(), 512);
  EXPECT_TRUE(same_state(planted, before));
  without.step->loss_scale().resume(planted.step->loss_scale().state());
  for (int i = 0; i < 3; ++i) {
    const StepReport a = planted.run(), b = without.run();
    EXPECT_TRUE(a.updated());
    EXPECT_EQ(a.loss_scale, 512);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
  }
  EXPECT_TRUE(same_state(planted, without.state()));
}

// The scale doubles after three steps, which is too much: step 4 overflows, and later steps use the
// first scale. A run that skips the samples of step 4 has the same learning rates, weight decays
// and weights.
TEST(Fp16, AStepThatOverflowsInARunDoesNotAdvanceTheSchedules) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny_fp16(0x1p40);
  s.precision.loss_scaling.hysteresis = 1;
  s.optimizer.lr = 1e-4;
  s.optimizer.lr_decay_style = optim::DecayStyle::linear;
  s.optimizer.lr_decay_iters = 10;
  s.optimizer.start_weight_decay = 0.01;
  s.optimizer.end_weight_decay = 0.1;
  s.optimizer.weight_decay_increase = optim::DecayIncrease::linear;
  s.batch.train_iters = 40;
  const double largest = train(s, kQuick).iterations.back().loss_scale;

  s.precision.loss_scaling.initial = largest;
  s.precision.loss_scaling.window = 3;
  s.batch.train_iters = 7;
  s.checkpoint.save = folder / "overflow";
  const TrainResult overflow = train(s, kQuick);
  s.precision.loss_scaling.window = 1000;
  s.run.iterations_to_skip = {"3"};  // the step after three others
  s.checkpoint.save = folder / "without";
  const TrainResult without = train(s, kQuick);

  ASSERT_EQ(overflow.iterations.size(), 7);
  ASSERT_EQ(without.iterations.size(), 6);
  const IterationReport& fourth = overflow.iterations[3];
  ASSERT_EQ(fourth.outcome, StepOutcome::overflow);
  EXPECT_EQ(fourth.loss_scale, 2 * largest);
  for (size_t i = 0; i < 6; ++i) {
    const IterationReport &a = overflow.iterations[i < 3 ? i : i + 1], &b = without.iterations[i];
    EXPECT_EQ(a.iteration, b.iteration);
    EXPECT_EQ(a.outcome, StepOutcome::updated);
    EXPECT_EQ(a.loss_scale, largest);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.learning_rate, b.learning_rate);
    EXPECT_EQ(a.weight_decay, b.weight_decay);
    EXPECT_DOUBLE_EQ(a.learning_rate, 1e-4 * (1 - static_cast<double>(i) / 10));
    EXPECT_GT(a.weight_decay, i == 0 ? 0 : without.iterations[i - 1].weight_decay);
  }
  for (const char* file : {"/model.safetensors", "/optimizer-00001-of-00001.safetensors"})
    EXPECT_EQ(read_file(overflow.saved + file), read_file(without.saved + file)) << file;
}

TEST(Fp16, ARunThatSkipsEveryStepSaysSo) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny_llama();
  s.precision.fp16 = true;
  s.precision.loss_scaling.constant = 0x1p60;
  s.batch.train_iters = 51;
  s.log.log_jsonl = folder / "log.jsonl";
  train(s, kQuick);
  const std::string log = read_file(folder / "log.jsonl");
  EXPECT_NE(
      log.find("the last 50 steps were all skipped, at a loss scale of 1.152921504606847e+18"),
      std::string::npos);
}

TEST(Fp16, TheNormAndTheLossAreThoseWithoutScale) {
  Trial scaled(tiny_fp16(4096)), plain(tiny_fp16(1));
  const StepReport a = scaled.run(), b = plain.run();
  EXPECT_TRUE(a.updated());
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 2e-2 * b.gradient_norm);  // tiny ones underflow
  Trial wide(tiny_llama());
  EXPECT_NEAR(a.gradient_norm, wide.run().gradient_norm, 4 * 0x1p-11 * b.gradient_norm);
}

// An activation exceeds 65504. Steps are treated as overflows until the scale reaches its minimum.
TEST(Fp16, AWeightThatIsTooLarge) {
  settings::TrainSettings s = tiny_fp16(4);
  s.precision.loss_scaling.hysteresis = 1;
  Trial trial(s);
  kernels::table(trial.runtime.stream())
      .fill({.out = trial.parameter("layers.0.mlp.down").value, .value = 60000},
            trial.runtime.stream());
  kernels::table(trial.runtime.stream())
      .fill({.out = trial.parameter("layers.0.mlp.up").value, .value = 60000},
            trial.runtime.stream());
  const auto before = trial.state();
  for (const double scale : {4.0, 2.0}) {
    const StepReport report = trial.run();
    EXPECT_EQ(report.loss_scale, scale);
    EXPECT_EQ(report.outcome, StepOutcome::overflow);
  }
  EXPECT_EQ(trial.run().outcome, StepOutcome::not_finite);
  EXPECT_TRUE(same_state(trial, before));
}

TEST(NotFinite, LeavesTheStepOutUnlessTheCheckIsOff) {
  for (const bool bf16 : {false, true}) {
    settings::TrainSettings s = tiny_llama();
    s.precision.bf16 = bf16;
    for (const bool check : {true, false}) {
      Trial trial(s, check);
      kernels::table(trial.runtime.stream())
          .fill({.out = trial.parameter("norm").value, .value = NAN}, trial.runtime.stream());
      const auto before = trial.state();
      EXPECT_EQ(trial.run().outcome, check ? StepOutcome::not_finite : StepOutcome::updated);
      EXPECT_EQ(same_state(trial, before), check);
    }
  }
}

TEST(Fp16, RanksDecideAlike) {
  settings::TrainSettings s = tiny_fp16(0x1p34);
  s.precision.loss_scaling.hysteresis = 1;
  s.batch.train_iters = 20;
  const TrainResult one = train(s, kQuick);
  s.runtime.ranks = 2;
  const TrainResult two = train(s, kQuick);
  ASSERT_EQ(one.iterations.size(), two.iterations.size());
  for (size_t i = 0; i < one.iterations.size(); ++i) {
    EXPECT_EQ(one.iterations[i].outcome, two.iterations[i].outcome) << i;
    EXPECT_EQ(one.iterations[i].loss_scale, two.iterations[i].loss_scale) << i;
  }
  EXPECT_LE(distance(losses(one), losses(two)), 4 * 0x1p-11);
}

TEST(Fp16, ACheckpointHoldsWeightsMastersAndScale) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny_fp16(0x1p40);
  s.precision.loss_scaling.hysteresis = 1;
  s.checkpoint.save = folder / "run";
  const TrainResult result = train(s, kQuick);
  const Json state = Json::read(result.saved + "/trainer_state.json");
  EXPECT_EQ(state["precision"], Json("f16"));
  EXPECT_EQ(state["loss_scale"]["value"], Json(0x1p35));
  EXPECT_EQ(state["scheduled_samples"], Json(0));
  EXPECT_EQ(state["skipped_steps"], Json(5));
  EXPECT_EQ(state["consumed_samples"], Json(40));
  const Json config = Json::read(result.saved + "/config.json");
  const Json* type =
      config.find("dtype") != nullptr ? config.find("dtype") : config.find("torch_dtype");
  ASSERT_NE(type, nullptr);
  EXPECT_EQ(*type, Json("float16"));
  EXPECT_NE(read_file(result.saved + "/model.safetensors").find("\"F16\""), std::string::npos);
  EXPECT_NE(read_file(result.saved + "/optimizer-00001-of-00001.safetensors").find("\"master."),
            std::string::npos);
  const resume::TrainerState read = resume::TrainerState::from_json(state, result.saved);
  EXPECT_EQ(read.scheduled_samples, 0);
  EXPECT_EQ(read.loss_scale->value, 0x1p35);
}

// The trainer state was written by a version that could not skip steps.
TEST(TrainerState, WithoutItsPlaceInTheScheduleTakesTheSamples) {
  const resume::TrainerState written{.iteration = 3,
                                     .consumed_samples = 24,
                                     .scheduled_samples = 16,
                                     .data = Json::Object{},
                                     .layout = Json::Object{}};
  Json::Object object = written.to_json().as_object();
  EXPECT_EQ(resume::TrainerState::from_json(object, "x").scheduled_samples, 16);
  std::erase_if(object, [](const auto& field) { return field.first == "scheduled_samples"; });
  EXPECT_EQ(resume::TrainerState::from_json(object, "x").scheduled_samples, 24);
}

TEST(Fp16, ACheckpointIsEvaluatedAndGoneOnFromInAnotherFormat) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = tiny_fp16(1024);
  s.checkpoint.save = folder / "run";
  s.run.eval_interval = 5;
  s.run.eval_iters = 2;
  const TrainResult half = train(s, kQuick);
  EXPECT_GT(half.validation_loss, 0);
  s.precision = {};
  s.checkpoint.save.reset();
  s.checkpoint.load = half.saved;
  s.checkpoint.finetune = true;
  s.optimizer.lr = s.optimizer.min_lr = 0;
  // Evaluates the same weights on the same samples in fp32.
  EXPECT_NEAR(train(s, kQuick).validation_loss, half.validation_loss, 0x1p-11 * 5);
}

}  // namespace
}  // namespace megatron::training
