// Module states are tensors that training changes without a gradient: updated once per step, equal
// in every layout, saved and resumed by name. Also tests parameters whose type differs from the
// model's.
#include <numeric>

#include "checkpoint/safetensors.h"
#include "comm/threads.h"
#include "dist/training/runs.h"
#include "text.h"
#include "toy_model.h"
#include "training/model_source.h"
#include "training/trained_model.h"
#include "training/whole_on_one.h"

namespace megatron::training {
namespace {

using testing::error_of;

constexpr const char* kSequence = "--tensor-model-parallel-size 2 --sequence-parallel";
constexpr const char* kStages = "--pipeline-model-parallel-size 2";
constexpr const char* kRecompute =
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1";

TrainResult run_toy(const settings::TrainSettings& settings, const testing::Toy& toy = {}) {
  return train(settings, {.composed = testing::toy_model(toy), .peak = 1e12});
}

class ModuleStates : public ::testing::Test {
 protected:
  settings::TrainSettings settings(const std::string& name, const std::string& flags = "") const {
    settings::TrainSettings s = with_flags(deep_gpt2(), flags);
    s.batch.train_iters = 4;
    s.checkpoint.save = folder / name;
    return s;
  }
  static Tensors states_in(const std::string& directory) {
    Tensors states = saved_tensors(directory).weights;
    std::erase_if(states, [](const auto& entry) {
      return !entry.first.starts_with("toy.") || entry.first.ends_with("gain");
    });
    return states;
  }

  static double tokens_seen(const Tensors& states) {
    const std::vector<double>& counts = states.at("toy.seen");
    return std::accumulate(counts.begin(), counts.end(), 0.0);
  }

  TemporaryDirectory folder;
};

// A step has 8 sequences of 16 tokens. Recompute, a second micro-batch and an evaluation count no
// token twice.
TEST_F(ModuleStates, CountEveryTokenOfAStepOnce) {
  const std::vector<std::pair<const char*, std::string>> layouts = {
      {"one", kRecompute},
      {"replicas", "--ranks 2 --data-parallel-sharding-strategy optim_grads_params"},
      {"tensor", kTensor},
      {"sequence", kSequence},
      {"stages", std::string(kStages) + " " + kRecompute},
      {"chunks", std::string(kStages) + " --num-virtual-stages-per-pipeline-rank 2"}};
  Tensors expected;
  for (const auto& [name, flags] : layouts) {
    const std::string path = run_toy(settings(name, flags)).saved;
    const Tensors states = states_in(path);
    ASSERT_EQ(states.size(), 5u) << name;
    EXPECT_EQ(tokens_seen(states), 4 * 8 * 16) << name;
    if (expected.empty()) expected = states;
    EXPECT_EQ(states.at("toy.seen"), expected.at("toy.seen")) << name;
    EXPECT_LE(distance(states, expected), tolerance::kLayoutFp32) << name;
  }
  EXPECT_NE(expected.at("toy.layers.0.running"), expected.at("toy.layers.3.running"));
}

// Also with bf16 models, whose states are f32.
TEST_F(ModuleStates, AreResumedToTheBit) {
  for (const char* precision : {"", "--bf16"}) {
    for (const char* layout : {kRecompute, kSequence, kStages}) {
      const std::string flags = fmt::format("{} {}", precision, layout),
                        name = std::to_string(std::hash<std::string>()(flags));
      const TrainResult straight = run_toy(settings(name + "a", flags));
      settings::TrainSettings s = settings(name + "b", flags);
      s.checkpoint.load = s.checkpoint.save;
      s.checkpoint.exit_interval = 2;
      std::vector<double> all = losses(run_toy(s));
      s.checkpoint.exit_interval.reset();
      const TrainResult rest = run_toy(s);
      ASSERT_EQ(rest.first_iteration, 2);
      for (const double loss : losses(rest)) all.push_back(loss);
      EXPECT_TRUE(same_bits(all, losses(straight))) << flags;
      const SavedTensors ours = saved_tensors(rest.saved), theirs = saved_tensors(straight.saved);
      EXPECT_EQ(ours.weights, theirs.weights) << flags;
      EXPECT_EQ(ours.states, theirs.states) << flags;
      const checkpoint::SafetensorsFile file(rest.saved + "/model.safetensors");
      EXPECT_EQ(file.find("toy.seen")->dtype, DType::f32);
    }
  }
}

TEST_F(ModuleStates, GoOnInAnotherLayout) {
  const std::vector<double> one = losses(run_toy(settings("one")));
  settings::TrainSettings s = settings("grid");
  s.checkpoint.load = s.checkpoint.save;
  s.checkpoint.exit_interval = 2;
  std::vector<double> all = losses(run_toy(with_flags(s, std::string(kSequence) + " " + kStages)));
  s.checkpoint.exit_interval.reset();
  const TrainResult rest = run_toy(with_flags(s, "--ranks 2 --use-distributed-optimizer"));
  for (const double loss : losses(rest)) all.push_back(loss);
  EXPECT_LE(distance(all, one), tolerance::kLayoutFp32);
  EXPECT_EQ(states_in(rest.saved).at("toy.seen"),
            states_in(folder / "one/iter_0000004").at("toy.seen"));
}

TEST_F(ModuleStates, OfACheckpointAreNotOptionalAndOfOtherWeightsAreToldToBegin) {
  settings::TrainSettings s = settings("plain");
  s.checkpoint.exit_interval = 2;
  run_toy(s, {.states = false});
  s.checkpoint.load = s.checkpoint.save;
  EXPECT_NE(error_of([&] { run_toy(s); }).find("missing: 5 (toy."), std::string::npos)
      << error_of([&] { run_toy(s); });
  settings::TrainSettings finetune = settings("tuned");
  finetune.checkpoint.load = folder / "plain";
  finetune.checkpoint.finetune = true;
  ::testing::internal::CaptureStderr();
  const std::string saved = run_toy(with_flags(finetune, kStages)).saved;
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(output.find("has no module states 5 (toy."), std::string::npos) << output;
  EXPECT_EQ(tokens_seen(states_in(saved)), 4 * 8 * 16);
}

// At a loss scale of 2^32 every gradient overflows.
TEST_F(ModuleStates, StayWhereAStepChangesNoWeight) {
  const TrainResult result = run_toy(settings("fp16", "--fp16 --initial-loss-scale 4294967296"));
  for (const IterationReport& report : result.iterations)
    EXPECT_EQ(report.outcome, StepOutcome::overflow);
  const Tensors states = states_in(result.saved);
  EXPECT_EQ(tokens_seen(states), 0);
  EXPECT_EQ(states.at("toy.layers.2.running"), std::vector<double>(32, 1.0));
}

TEST_F(ModuleStates, AreInAModelThatIsLoadedWhole) {
  const settings::TrainSettings s = settings("run");
  const std::string saved = run_toy(s).saved;
  const models::Model toy =
      testing::toy_model()(models::model_from_flags(deep_gpt2().shape, *s.batch.seq_length));
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  const auto whole = load_model(checkpoint::ModelDirectory(saved), toy, runtime, DType::f32, 1);
  ASSERT_EQ(whole->states().size(), 5u);
  EXPECT_EQ(to_doubles(whole->states()[0]->value()), states_in(saved).at("toy.seen"));
}

// Samples need all module states, and each rank holds a part of the layers and of the counts.
TEST_F(ModuleStates, AreGatheredOnTheFirstRank) {
  const models::Model toy = testing::toy_model()(models::model_from_flags(deep_gpt2().shape, 16));
  comm::run_ranks(4, [&](comm::Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    ModelLayout layout;
    layout.ranks.layout = {.tp = 2, .pp = 2};
    layout.ranks.pipeline = {.stages = 2};
    TrainedModel trained(toy, DType::bf16, 1, layout, world, runtime, {});
    trained.initialize(1);
    trained.step.begin({});
    on_first_rank(trained, toy, DType::bf16, world, [](const models::Stage& whole) {
      ASSERT_EQ(whole.states().size(), 5u);
      EXPECT_EQ(to_doubles(whole.states()[0]->value()), std::vector<double>(97, 0.0));
      for (const nn::ModuleState* state : whole.states().subspan(1))
        EXPECT_EQ(to_doubles(state->value()), std::vector<double>(32, 1.0));
      for (const parallel::ParameterSpec* placed : whole.parameters())
        if (placed->parameter.name.ends_with("gain")) {
          EXPECT_EQ(to_doubles(placed->parameter.value), std::vector<double>(32, 1.0));
        }
    });
  });
}

// Four layers with a statistic of 32 channels each, and counts of 97 tokens. The planned model has
// the same bytes as the trained one.
TEST_F(ModuleStates, AreInTheMemoryThatIsPlanned) {
  const settings::TrainSettings s = deep_gpt2();
  const models::Model plain = models::model_from_flags(s.shape, *s.batch.seq_length);
  const auto bytes = [&](DeviceKind device, bool states) {
    Runtime runtime({device, 0}, 1);
    const auto alone = comm::single();
    const TrainedModel trained(testing::toy_model({.states = states})(plain), DType::bf16, 1, {},
                               *alone, runtime, {});
    return runtime.arena(MemoryClass::parameters).in_use();
  };
  EXPECT_EQ(bytes(DeviceKind::meta, true), bytes(DeviceKind::cpu, true));
  EXPECT_GE(bytes(DeviceKind::meta, true) - bytes(DeviceKind::meta, false), (4 * 32 + 97) * 4);
}

// A bf16 model with some fp32 parameters: with one micro-batch, every sharding strategy gives the
// bits of plain replicas, overlapped or not, and the checkpoint keeps both types.
TEST_F(ModuleStates, ParametersOfTwoTypesAreShardedToTheBit) {
  const auto with = [&](const std::string& name, const std::string& flags) {
    return run_toy(
        settings(name, "--bf16 --ranks 2 --micro-batch-size 4 --global-batch-size 8 " + flags));
  };
  const TrainResult plain = with("plain", "");
  const SavedTensors expected = saved_tensors(plain.saved);
  const std::string overlap =
      " --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 3000";
  for (const std::string& flags :
       {std::string("--use-distributed-optimizer"), "--use-distributed-optimizer" + overlap,
        std::string("--data-parallel-sharding-strategy optim_grads"),
        "--data-parallel-sharding-strategy optim_grads_params" + overlap}) {
    const TrainResult sharded = with(std::to_string(std::hash<std::string>()(flags)), flags);
    EXPECT_TRUE(same_bits(losses(sharded), losses(plain))) << flags;
    const SavedTensors saved = saved_tensors(sharded.saved);
    EXPECT_EQ(saved.weights, expected.weights) << flags;
    EXPECT_EQ(saved.states, expected.states) << flags;
  }
  const checkpoint::SafetensorsFile file(plain.saved + "/model.safetensors");
  EXPECT_EQ(file.find("toy.layers.0.mlp.gain")->dtype, DType::f32);
  EXPECT_EQ(file.find("transformer.h.0.ln_1.weight")->dtype, DType::bf16);
  EXPECT_NE(expected.weights.at("toy.layers.0.mlp.gain"), std::vector<double>(32, 1.0));
}

}  // namespace
}  // namespace megatron::training
