// Runs with quantised products: they go on from checkpoints, and refuse what they cannot do.
#include <array>
#include <fstream>
#include <utility>

#include "dist/training/executed_run.h"
#include "dist/training/runs.h"
#include "text.h"
#include "training/plan/precision_text.h"
#include "training/run_plan.h"

namespace megatron::training::low_precision_test {
namespace {

constexpr const char* kStages = "--pipeline-model-parallel-size 2";

settings::TrainSettings six_steps() {
  settings::TrainSettings s = deep_llama();
  s.shape.ffn_hidden_size = 64;
  s.batch.train_iters = 6;
  return s;
}
settings::TrainSettings with_delayed_scales() {
  return with_flags(six_steps(),
                    "--fp8-format hybrid --fp8-amax-history-len 3 --fp8-amax-compute-algo max");
}

// Scales and the largest elements of earlier steps are part of a checkpoint.
TEST(DelayedScales, GoOn) {
  const settings::TrainSettings s = with_delayed_scales();
  const std::vector<double> one = losses(run(s));
  for (const char* after : {"", kStages, kTensor, "--ranks 2 --use-distributed-optimizer",
                            "--ranks 2 --use-distributed-optimizer --fp8-param-gather"}) {
    const TemporaryDirectory folder;
    settings::TrainSettings stops = s;
    stops.checkpoint.save = stops.checkpoint.load = folder / "run";
    stops.checkpoint.exit_interval = 3;
    std::vector<double> all = losses(run(stops));
    stops.checkpoint.exit_interval.reset();
    for (const double loss : losses(run(with_flags(stops, after)))) all.push_back(loss);
    if (std::string_view(after).empty() || after == kStages) {
      EXPECT_TRUE(same_bits(all, one)) << after;
    } else {
      EXPECT_LE(distance(all, one), tolerance::kLayoutFp32) << after;
    }
  }
}

// A run goes on with another recipe, or without one.
TEST(DelayedScales, BeginAndEndOnResume) {
  settings::TrainSettings quantized = with_delayed_scales();
  settings::TrainSettings plain = six_steps();
  settings::TrainSettings longer = quantized;
  longer.precision.fp8_history = 5;
  for (const auto& [first, second] :
       {std::pair(quantized, plain), {plain, quantized}, {quantized, longer}}) {
    const TemporaryDirectory folder;
    settings::TrainSettings stops = first, goes_on = second;
    stops.checkpoint.save = goes_on.checkpoint.load = folder / "run";
    stops.checkpoint.exit_interval = 3;
    run(stops);
    const TrainResult rest = run(goes_on);
    EXPECT_EQ(rest.first_iteration, 3);
    EXPECT_EQ(rest.iterations.size(), 3U);
  }
}

// Matrices that shards cut within blocks of 128 x 128, and two ranks in whole ones.
settings::TrainSettings wide(const std::string& flags) {
  settings::TrainSettings s = deep_llama();
  s.shape.num_layers = 2;
  s.shape.hidden_size = s.shape.ffn_hidden_size = 256;
  s.shape.num_attention_heads = 2;
  s.batch.micro_batch_size = 1;
  s.batch.global_batch_size = 2;
  s.batch.train_iters = 3;
  return with_flags(s, "--bf16 " + flags);
}

constexpr const char* kCoded = " --fp8-param-gather";
constexpr const char* kOptimizer =
    " --ranks 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather";
constexpr const char* kGradients =
    " --ranks 2 --data-parallel-sharding-strategy optim_grads --overlap-grad-reduce "
    "--overlap-param-gather";
constexpr const char* kInstances =
    " --ranks 4 --global-batch-size 4 --use-distributed-optimizer "
    "--num-distributed-optimizer-instances 2";
constexpr const char* kExperts =
    " --ranks 4 --global-batch-size 4 --num-experts 2 --moe-router-topk 1 --moe-router-pre-softmax "
    "--moe-ffn-hidden-size 256 --expert-model-parallel-size 2 --use-distributed-optimizer";
constexpr const char* kParameters =
    " --ranks 2 --data-parallel-sharding-strategy optim_grads_params";
constexpr const char* kTensorAndParameters =
    " --ranks 4 --tensor-model-parallel-size 2 --global-batch-size 4 --overlap-grad-reduce "
    "--overlap-param-gather --data-parallel-sharding-strategy optim_grads_params";

// Ranks that gather weights as codes have the losses, the gradients and the weights of those that
// do not, and of those that divide nothing.
class CodedGather : public ::testing::TestWithParam<const char*> {
 protected:
  // With the flag that gathers the recipe's codes.
  static std::string coded(const std::string& flags) {
    return flags + (in_fp4() ? " --fp4-param-gather" : kCoded);
  }
  static bool in_fp4() { return std::string_view(GetParam()).starts_with("--fp4"); }
  struct Outcome {
    std::vector<double> losses, norms;
    Tensors weights;
    bool operator==(const Outcome&) const = default;
  };
  static Outcome outcome(const std::string& flags) {
    const TemporaryDirectory folder;
    settings::TrainSettings s = wide(flags);
    s.checkpoint.save = folder / "run";
    const TrainResult result = run(s);
    return {losses(result), norms(result), saved_tensors(result.saved).weights};
  }
};

TEST_P(CodedGather, ChangesNoBit) {
  const std::string recipe = GetParam();
  const Outcome whole = outcome(recipe + " --ranks 2");
  ASSERT_EQ(whole.losses.size(), 3U);
  ASSERT_FALSE(whole.weights.empty());
  for (const std::string layout : {kOptimizer, kGradients, kParameters})
    EXPECT_EQ(outcome(coded(recipe + layout)), whole) << layout;
  // Samples of text are of whole weights in their type, between steps.
  const std::string samples = " --sample-interval 1 --sample-prompt 5";
  EXPECT_EQ(outcome(coded(recipe + kOptimizer + samples)), whole);
  for (const std::string layout : {kTensorAndParameters, kInstances, kExperts})
    EXPECT_EQ(outcome(coded(recipe + layout)), outcome(recipe + layout)) << layout;
}

// Both the memory and the bytes are those of the plan: those of coded weights are halved, or in fp4
// a quarter.
TEST_P(CodedGather, IsPlanned) {
  // Without overlap: threads report its calls later.
  for (const std::string layout :
       {" --ranks 2 --use-distributed-optimizer", kParameters,
        " --ranks 4 --tensor-model-parallel-size 2 --global-batch-size 4 "
        "--data-parallel-sharding-strategy optim_grads_params"}) {
    double plain = 0;
    for (const std::string& flags : {GetParam() + layout, coded(GetParam() + layout)}) {
      SCOPED_TRACE(flags);
      const SettledRun settled = settle_run(wide(flags));
      settings::TrainSettings settings = settled.settings;
      const plan::Plan plan = make_plan(settings, settled.model, settled.vocabulary, {});
      expect_planned(plan, executed(settled, 2));
      double gathered = 0;
      for (const plan::TrafficWork& work : plan.traffic)
        if (work.call == "parameters") gathered += work.sent;
      const double before = std::exchange(plain, gathered);
      if (before == 0) continue;
      // Embedding and output layer have 194 of 3,778 rows of 256, and padding at borders of shards.
      const double share = gathered / before;
      EXPECT_GT(share, in_fp4() ? 0.25 : 0.5);
      EXPECT_LT(share, in_fp4() ? 0.36 : 0.58);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, CodedGather,
                         ::testing::Values("--fp8-format hybrid --fp8-amax-history-len 3 "
                                           "--fp8-amax-compute-algo max",
                                           "--fp8-format hybrid --fp8-recipe tensorwise",
                                           "--fp8-format e4m3 --fp8-recipe blockwise",
                                           "--fp4-format e2m1"),
                         [](const auto& info) {
                           return std::string(
                               std::array{"Delayed", "Tensorwise", "Blockwise", "Fp4"}[info.index]);
                         });

// A run stops with codes and goes on without them, and the reverse.
TEST(CodedGatherResume, ChangesNoBit) {
  const std::string flags = std::string("--fp8-format hybrid --train-iters 4") + kOptimizer;
  const std::vector<double> straight = losses(run(wide(flags)));
  for (const bool first : {false, true}) {
    const TemporaryDirectory folder;
    settings::TrainSettings stops = wide(flags + (first ? kCoded : ""));
    settings::TrainSettings goes_on = wide(flags + (first ? "" : kCoded));
    stops.checkpoint.save = goes_on.checkpoint.load = folder / "run";
    stops.checkpoint.exit_interval = 2;
    std::vector<double> all = losses(run(stops));
    for (const double loss : losses(run(goes_on))) all.push_back(loss);
    EXPECT_TRUE(same_bits(all, straight)) << first;
  }
}

// Products that leave fp8 use the weights as they are.
TEST(CodedGatherResume, EndsWithQuantization) {
  const std::string flags =
      std::string("--fp8-format hybrid --fp4-switch-to-bf16-at 2") + kParameters;
  EXPECT_TRUE(same_bits(losses(run(wide(flags + kCoded))), losses(run(wide(flags)))));
}

TEST(CodedGatherText, SaysWhatIsGathered) {
  const auto text = [](const std::string& flags) {
    const SettledRun settled = settle_run(wide(flags + kCoded));
    return precision_text(settled.settings, settled.model);
  };
  const std::string sharded = " --ranks 2 --use-distributed-optimizer";
  for (const auto& [found, part] :
       {std::pair(text("--fp4-format e2m1 --fp4-param-gather" + sharded),
                  "; trained weights of nvfp4 products are gathered as codes, others in bf16"),
        {text("--fp8-format e4m3" + sharded),
         "; trained weights of delayed products are gathered as codes, others in bf16"},
        {text("--fp8-format e4m3 --fp8-recipe mxfp8" + sharded), "are gathered in bf16, since"},
        {text("--fp8-format e4m3"), "no weights are gathered"}})
    EXPECT_TRUE(megatron::testing::has(found, part)) << found;
}

// Adam's moments in 8 bits have no scales that a division of their parameter could change: a run
// stops with moments of one rank and goes on in any layout, much nearer than to moments of f32.
TEST(MomentsOfEightBits, GoOnInAnyLayout) {
  const settings::TrainSettings plain = six_steps();
  const settings::TrainSettings s = with_flags(plain, "--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8");
  const std::vector<double> one = losses(run(s));
  EXPECT_GT(distance(one, losses(run(plain))), 20 * tolerance::kLayoutFp32);
  const TemporaryDirectory folder;
  settings::TrainSettings stops = s;
  stops.checkpoint.save = folder / "run";
  stops.checkpoint.exit_interval = 3;
  std::vector<double> start = losses(run(stops));
  settings::TrainSettings goes_on = s;
  goes_on.checkpoint.load = folder / "run";
  for (const char* after : {"", kStages, kTensor, "--ranks 2 --use-distributed-optimizer",
                            "--tensor-model-parallel-size 2 --ranks 4 --use-distributed-optimizer "
                            "--data-parallel-sharding-strategy optim_grads_params"}) {
    std::vector<double> all = start;
    for (const double loss : losses(run(with_flags(goes_on, after)))) all.push_back(loss);
    EXPECT_LE(distance(all, one), tolerance::kLayoutFp32) << after;
    const bool exact = std::string_view(after).empty() || after == kStages;
    EXPECT_TRUE(!exact || same_bits(all, one)) << after;
  }
  const std::string error =
      megatron::testing::error_of([&] { run(with_flags(goes_on, "--exp-avg-dtype fp32")); });
  for (const std::string part : {"--exp-avg-dtype fp8", "now it is fp32", "--no-load-optim"})
    EXPECT_TRUE(megatron::testing::has(error, part)) << error;
}

// From a step on, the run is that of bf16: at the first step, all of it.
TEST(LowPrecisionRun, LeavesFp4) {
  const settings::TrainSettings s = six_steps();
  const std::vector<double> plain = losses(run(s));
  EXPECT_TRUE(
      same_bits(losses(run(with_flags(s, "--fp4-format e2m1 --fp4-switch-to-bf16-at 1"))), plain));
  const std::vector<double> fp4 = losses(run(with_flags(s, "--fp4-format e2m1"))),
                            leaves = losses(
                                run(with_flags(s, "--fp4-format e2m1 --fp4-switch-to-bf16-at 4")));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(leaves[i], fp4[i]) << i;
  EXPECT_NE(leaves[3], fp4[3]);
}

// A file for single modules: it can say what flags say, and more.
TEST(LowPrecisionRun, HasThePrecisionOfAFile) {
  const TemporaryDirectory folder;
  int files = 0;
  const auto with_file = [&](const std::string& recipe, const std::string& pattern,
                             const std::string& flags) {
    const std::string path = folder / (std::to_string(++files) + ".yaml");
    std::ofstream(path)
        << "configs:\n  a:\n    transformer_engine_config_type: TEQuantizationParams\n"
        << "    training_recipe: {" << recipe << "}\nmatchers:\n  m: {type: glob, pattern: '"
        << pattern << "', config: a, enabled: true}\n";
    return with_flags(six_steps(), "--te-precision-config-file " + path + flags);
  };
  const std::string always = "fp8_quantization_recipe: mxfp8, override_nonquantized_autocast: true",
                    mxfp8 = " --fp8-format e4m3 --fp8-recipe mxfp8";
  const std::vector<double> of_flags = losses(run(with_flags(six_steps(), mxfp8))),
                            mixed = losses(run(with_file("", "*.linear_fc2", mxfp8)));
  EXPECT_TRUE(same_bits(losses(run(with_file(always, "*", ""))), of_flags));
  EXPECT_TRUE(same_bits(losses(run(with_file("", "*", " --fp4-format e2m1 --bf16"))),
                        losses(run(with_flags(six_steps(), "--bf16")))));
  EXPECT_FALSE(same_bits(mixed, of_flags));
  const SettledRun settled = settle_run(with_file(always, "*.[12].mlp.linear_fc2", ""));
  EXPECT_EQ(precision_text(settled.settings, settled.model),
            "e4m3, mxfp8 scales: layers.{1-2}.mlp.down; in f32: layers.{0-3}.attention.output, "
            "layers.{0-3}.attention.qkv, layers.{0,3}.mlp.down, layers.{0-3}.mlp.up, embedding, "
            "output layer, norms, attention");
  for (const auto& [settings, part] :
       {std::pair(with_file(always, "*.fc2", ""), ".yaml:6: the pattern '*.fc2' fits no module"),
        {with_file("fp8_quantization_recipe: mxfp8", "*", ""), "override_nonquantized_autocast"}}) {
    const std::string error = megatron::testing::error_of([&] { run(settings); });
    EXPECT_TRUE(megatron::testing::has(error, part)) << error;
  }
}

TEST(LowPrecisionRun, IsRefusedByName) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> refused = {
      {"--fp16 --fp8-format hybrid", {"--fp8-format is not for --fp16", "--bf16"}},
      {"--fp8-format e4m3 --fp4-format e2m1", {"--fp8-format and --fp4-format", "exclusive"}},
      {"--fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-start-in-bf16 3",
       {"--num-layers-at-start-in-bf16 3", "none of 4 layers"}},
      {"--fp8-format e4m3 --fp8-recipe blockwise --tensor-model-parallel-size 2",
       {"recipe blockwise", "multiples of 128", "--tensor-model-parallel-size"}},
      {"--fp8-format e4m3 --fp8-output-proj", {"--fp8-output-proj", "mxfp8", "is delayed"}},
      {"--fp4-format e2m1 --mlp-chunks-for-training 2", {"--mlp-chunks-for-training 2"}},
      {"--fp4-format e2m1 --fp4-switch-to-bf16-at 0", {"--fp4-switch-to-bf16-at is 0"}}};
  for (const auto& [flags, parts] : refused) {
    const std::string error =
        megatron::testing::error_of([&] { run(with_flags(six_steps(), flags)); });
    for (const std::string& part : parts)
      EXPECT_TRUE(megatron::testing::has(error, part)) << part << " in: " << error;
  }
}

}  // namespace
}  // namespace megatron::training::low_precision_test
