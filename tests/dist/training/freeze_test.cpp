// Runs with --freeze: what they need is what their plan says, their checkpoints have optimizer
// state of trained parameters only, and frozen tensors keep every bit of their initial values.
#include "base/json.h"
#include "dist/training/executed_run.h"
#include "dist/training/runs.h"
#include "training/frozen_parameters.h"

namespace megatron::training::freeze_test {
namespace {

constexpr const char* kBase = "--freeze model.embed_tokens.weight model.layers.[01].* *mlp* ";
constexpr const char* kStages = "--pipeline-model-parallel-size 2 ";
constexpr const char* kZero3 = "--ranks 4 --data-parallel-sharding-strategy optim_grads_params ";

bool is_frozen(const std::string& name) {
  return name.find("embed_tokens") != name.npos || name.find("layers.0.") != name.npos ||
         name.find("layers.1.") != name.npos || name.find("mlp") != name.npos;
}

TEST(Freeze, IsPlannedAsExecuted) {
  for (const std::string layout :
       {"", "--bf16 ", "--fp16 --optimizer sgd ", "--optimizer muon ", "--ranks 2 --bf16 ",
        "--ranks 2 --use-distributed-optimizer --bf16 ", kZero3, kStages,
        "--tensor-model-parallel-size 2 --sequence-parallel --bf16 ",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 ",
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 ",
        "--pipeline-model-parallel-size 2 --pipeline-schedule zb-v "}) {
    SCOPED_TRACE(layout);
    const SettledRun all = settle_run(with_flags(deep_llama(), layout)),
                     some = settle_run(with_flags(deep_llama(), layout + kBase));
    settings::TrainSettings settled = some.settings;
    const plan::Plan plan = make_plan(settled, some.model, some.vocabulary, {});
    const std::vector<ExecutedRank> ranks = executed(some, 2), whole = executed(all, 2);
    expect_planned(plan, ranks);
    double of_all = 0, of_whole = 0;
    for (size_t r = 0; r < ranks.size(); ++r) {
      of_all += ranks[r].sent;
      of_whole += whole[r].sent;
    }
    EXPECT_EQ(of_all < of_whole, ranks.size() > 1) << of_all << " of " << of_whole;
    for (size_t r = 0; r < ranks.size(); ++r)
      for (const MemoryClass c : {MemoryClass::gradients, MemoryClass::activations})
        EXPECT_LT(ranks[r].memory[static_cast<size_t>(c)], whole[r].memory[static_cast<size_t>(c)])
            << "rank " << r << ", " << name(c);
    EXPECT_EQ(plan.trained, FrozenParameters(some.model, settled.optimizer.freeze).trained());
    EXPECT_LT(*plan.trained, plan.parameter_count());
  }
}

// The first stage is frozen as a whole.
TEST(Freeze, AFrozenStageHasNoGradients) {
  const SettledRun run = settle_run(with_flags(deep_llama(), std::string(kStages) + kBase));
  const std::vector<ExecutedRank> ranks = executed(run, 2);
  const auto of = [&](size_t rank, MemoryClass c) {
    return ranks.at(rank).memory[static_cast<size_t>(c)];
  };
  EXPECT_EQ(of(0, MemoryClass::gradients), 0);
  EXPECT_GT(of(1, MemoryClass::gradients), 0);
  // Only the buffer for the gradient norm and scalars.
  EXPECT_LE(of(0, MemoryClass::optimizer), 8 * (1 + optim::OptimizerGroups().norm_window) + 1024);
  EXPECT_GT(of(1, MemoryClass::optimizer) - of(0, MemoryClass::optimizer),
            of(1, MemoryClass::gradients));
}

class FrozenRun : public ::testing::Test {
 protected:
  settings::TrainSettings settings(const std::string& flags) const {
    settings::TrainSettings s = with_flags(deep_llama(), flags);
    s.batch.train_iters = 4;
    s.checkpoint.save = s.checkpoint.load = folder_ / "run";
    return s;
  }
  // Saves after two of four steps.
  std::vector<double> begin(const std::string& flags) const {
    settings::TrainSettings s = settings(flags);
    s.checkpoint.exit_interval = 2;
    return losses(run(s));
  }
  std::string refusal(const std::string& flags) const {
    try {
      run(settings(flags));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory folder_;
};

TEST_F(FrozenRun, SavesStateOfTrainedParametersOnly) {
  settings::TrainSettings untrained = settings("");
  untrained.batch.train_iters = 1;
  untrained.optimizer.lr = 0;
  untrained.optimizer.lr_decay_style = optim::DecayStyle::constant;
  untrained.checkpoint.save = folder_ / "untrained";
  untrained.checkpoint.load.reset();
  for (const std::string type : {"", "--bf16 "}) {
    const SavedTensors first = saved_tensors(
        run(with_flags(untrained, type + "--save " + (folder_ / ("untrained" + type.substr(0, 3)))))
            .saved);
    settings::TrainSettings s = settings(kBase + type);
    s.checkpoint.save = folder_ / ("run" + type.substr(0, 3));
    s.checkpoint.load.reset();
    const SavedTensors last = saved_tensors(run(s).saved);
    ASSERT_EQ(last.weights.size(), first.weights.size());
    size_t frozen = 0;
    for (const auto& [name, values] : last.weights) {
      EXPECT_EQ(values == first.weights.at(name), is_frozen(name)) << name;
      if (is_frozen(name)) ++frozen;
    }
    EXPECT_GT(frozen, 0u);
    EXPECT_EQ(last.states.size(), (last.weights.size() - frozen) * (type.empty() ? 2 : 3));
    for (const auto& [name, values] : last.states) EXPECT_FALSE(is_frozen(name)) << name;
  }
}

TEST_F(FrozenRun, GoesOnInAnotherLayoutBitForBit) {
  std::vector<double> parts = begin(kBase);
  const TrainResult rest = run(settings(std::string(kBase) + kStages));
  EXPECT_EQ(rest.first_iteration, 2);
  for (const double loss : losses(rest)) parts.push_back(loss);
  settings::TrainSettings once = settings(kBase);
  once.checkpoint.save = folder_ / "once";
  once.checkpoint.load.reset();
  const TrainResult whole = run(once);
  EXPECT_TRUE(same_bits(parts, losses(whole)));
  EXPECT_EQ(saved_tensors(rest.saved).weights, saved_tensors(whole.saved).weights);
  EXPECT_EQ(saved_tensors(rest.saved).states, saved_tensors(whole.saved).states);
}

// Sharding moves neither a bit of a checkpoint nor the norm of all parameters.
TEST_F(FrozenRun, IsThatOfReplicasWhereverTheOptimizerIs) {
  const auto trained = [&](const std::string& name, const std::string& flags) {
    settings::TrainSettings s = settings(flags + " --log-params-norm");
    s.checkpoint.save = folder_ / name;
    s.checkpoint.load.reset();
    return run(s);
  };
  const std::string experts =
      "--num-experts 4 --moe-ffn-hidden-size 24 --freeze *self_attn* *layers.[01].* "
      "--ranks 4 --expert-model-parallel-size 2 ";
  for (const std::string& flags : {std::string(kBase) + "--ranks 2 ", experts}) {
    const TrainResult replicas = trained("replicas", flags);
    for (const std::string sharding :
         {"--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
          "--ddp-bucket-size 3000",
          "--use-distributed-optimizer --num-distributed-optimizer-instances 2"}) {
      if (flags == experts && sharding.find("instances") != sharding.npos) continue;
      const TrainResult sharded = trained("sharded", flags + sharding);
      EXPECT_TRUE(same_bits(losses(sharded), losses(replicas))) << flags << sharding;
      EXPECT_TRUE(same_bits(norms(sharded), norms(replicas))) << flags << sharding;
      EXPECT_EQ(saved_tensors(sharded.saved).weights, saved_tensors(replicas.saved).weights);
      EXPECT_EQ(saved_tensors(sharded.saved).states, saved_tensors(replicas.saved).states);
      for (size_t i = 0; i < replicas.iterations.size(); ++i)
        EXPECT_NEAR(sharded.iterations[i].parameter_norm, replicas.iterations[i].parameter_norm,
                    1e-6);
      std::filesystem::remove_all(folder_ / "sharded");
    }
    EXPECT_GT(replicas.iterations[0].parameter_norm, 1);
    std::filesystem::remove_all(folder_ / "replicas");
  }
}

TEST_F(FrozenRun, GoesOnOnlyWithTheSameParameters) {
  begin(kBase);
  for (const std::string other : {"", "--freeze *mlp*"}) {
    const std::string text = refusal(other);
    EXPECT_NE(text.find("was trained with --freeze model.embed_tokens.weight"), text.npos) << text;
    EXPECT_NE(text.find("--no-load-optim"), text.npos) << text;
  }
  // Other patterns of the same parameters.
  EXPECT_EQ(refusal("--freeze *embed* model.layers.0* model.layers.1* *mlp.*"), "");
}

TEST_F(FrozenRun, GoesOnWithOtherParametersAndANewOptimizer) {
  begin(kBase);
  const TrainResult rest = run(settings("--freeze *mlp* --no-load-optim"));
  EXPECT_EQ(rest.first_iteration, 2);
}

TEST(Freeze, PatternsAreChecked) {
  const auto refusal = [](const settings::TrainSettings& given, const std::string& flags) {
    try {
      settle_run(with_flags(given, flags));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expect = [&](const settings::TrainSettings& given, const std::string& flags,
                          std::vector<std::string> parts) {
    const std::string text = refusal(given, flags);
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), text.npos) << part << " in: " << text;
  };
  expect(deep_llama(), "--freeze *mlp* layers.0.self_attn.q_proj.weight",
         {"'layers.0.self_attn.q_proj.weight'", "model.layers.0.self_attn.q_proj.weight"});
  expect(deep_llama(), "--freeze *", {"nothing would be trained"});
  expect(deep_llama(), "--freeze *q_proj*", {"self_attn.q_proj.weight", "k_proj", "same matrix"});
  expect(tiny_gpt2(), "--freeze lm_head.weight", {"table of tokens", "transformer.wte.weight"});
  EXPECT_EQ(refusal(deep_llama(), "--freeze *[qkv]_proj*"), "");
}

// A frozen correction bias stays as it is, and others go on.
TEST(Freeze, OfRoutersKeepsTheirBias) {
  const TemporaryDirectory folder;
  const auto biases = [&](const std::string& flags, const std::string& name) {
    settings::TrainSettings s =
        with_flags(deep_llama(),
                   "--num-experts 4 --moe-ffn-hidden-size 24 --moe-router-score-function sigmoid "
                   "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.02 " +
                       flags);
    s.batch.train_iters = 2;
    s.checkpoint.save = folder / name;
    std::vector<bool> zero;
    for (const auto& [tensor, values] : saved_tensors(run(s).saved).weights)
      if (tensor.find("router.correction") != tensor.npos)
        zero.push_back(values == std::vector<double>(values.size()));
    return zero;
  };
  EXPECT_EQ(biases("", "all"), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(
      biases("--freeze *layers.[02]*router* --ranks 2 --expert-model-parallel-size 2", "some"),
      (std::vector<bool>{true, false, true, false}));
}

}  // namespace
}  // namespace megatron::training::freeze_test
