// Training runs of models with experts: other layouts give the results of one rank, including
// auxiliary losses and correction biases, and a resumed run is bit-identical.
#include "dist/training/runs.h"

namespace megatron::training {
namespace {

constexpr const char* kExperts =
    "--num-experts 4 --moe-ffn-hidden-size 24 --moe-layer-freq [0,1,1,1] "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
    "--moe-router-bias-update-rate 0.02 --moe-shared-expert-intermediate-size 16 "
    "--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.05 0.03 "
    "--moe-z-loss-coeff 0.01";

constexpr const char* kExpertRanks = "--ranks 2 --expert-model-parallel-size 2";
constexpr const char* kShardedExperts =
    "--ranks 4 --expert-model-parallel-size 2 --use-distributed-optimizer";
constexpr const char* kExpertsOfTensorRanks =
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "
    "--expert-tensor-parallel-size 1";
constexpr const char* kSlicedExperts =
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "
    "--data-parallel-sharding-strategy optim_grads_params";

double metric(const IterationReport& report, std::string_view name) {
  const auto found = std::ranges::find(report.metrics, name, &MetricValue::name);
  return found == report.metrics.end() ? NAN : found->value;
}

const std::vector<MetricValue::Layer>& layers(const IterationReport& report,
                                              std::string_view name) {
  const auto found = std::ranges::find(report.metrics, name, &MetricValue::name);
  EXPECT_NE(found, report.metrics.end()) << name;
  return found->layers;
}

class ExpertRuns : public ::testing::Test {
 protected:
  settings::TrainSettings settings(const std::string& name, const std::string& flags = "") const {
    settings::TrainSettings s = with_flags(deep_llama(), std::string(kExperts) + " " + flags);
    s.batch.train_iters = 4;
    s.checkpoint.save = folder_ / name;
    return s;
  }
  static Tensors corrections(const SavedTensors& saved) {
    Tensors found = saved.weights;
    std::erase_if(found, [](const auto& entry) {
      return entry.first.find("router.correction") == std::string::npos;
    });
    return found;
  }

  TemporaryDirectory folder_;
};

// Each step has eight sequences in micro-batches of two, in any distribution over ranks. Uses SGD
// because it does not magnify rounding.
TEST_F(ExpertRuns, OfOtherLayoutsAreThoseOfOneRank) {
  const std::string sgd = "--optimizer sgd --lr 0.1 ";
  const TrainResult one = run(settings("one", sgd));
  const SavedTensors expected = saved_tensors(one.saved);
  const Tensors biases = corrections(expected);
  ASSERT_EQ(biases.size(), 3u);
  for (const auto& [name, values] : biases) {
    ASSERT_EQ(values.size(), 4u) << name;
    EXPECT_NE(values, std::vector<double>(4)) << name;
    for (const double value : values) EXPECT_LE(std::abs(value), 4 * 0.02 + 1e-6) << name;
  }
  const std::vector<std::pair<const char*, std::string>> layouts = {
      {"recompute",
       "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
      {"replicas", kReplicas},
      {"sharded", "--ranks 2 --data-parallel-sharding-strategy optim_grads_params"},
      {"tensor", kTensor},
      {"stages", "--pipeline-model-parallel-size 2"},
      {"experts", kExpertRanks},
      {"sharded experts", kShardedExperts},
      {"experts of tensor ranks", kExpertsOfTensorRanks}};
  for (const auto& [name, flags] : layouts) {
    SCOPED_TRACE(name);
    const TrainResult found = run(settings(name, sgd + flags));
    EXPECT_LE(distance(losses(found), losses(one)), tolerance::kLayoutFp32);
    EXPECT_LE(distance(norms(found), norms(one)), tolerance::kLayoutFp32);
    for (const char* loss : {"aux_loss", "seq_aux_loss", "router_z_loss", "router_entropy"})
      for (size_t i = 0; i < one.iterations.size(); ++i)
        EXPECT_NEAR(metric(found.iterations[i], loss), metric(one.iterations[i], loss), 1e-4)
            << loss << " of step " << i;
    for (const char* figure : {"expert_load", "expert_bias_range", "router_entropy"})
      for (size_t i = 0; i < one.iterations.size(); ++i) {
        const auto &mine = layers(found.iterations[i], figure),
                   &wanted = layers(one.iterations[i], figure);
        ASSERT_EQ(mine.size(), 3u);
        for (size_t l = 0; l < 3; ++l) {
          EXPECT_EQ(mine[l].layer, static_cast<int64_t>(l) + 1);
          EXPECT_NEAR(mine[l].value, wanted[l].value, 1e-4) << figure << " of step " << i;
        }
      }
    const SavedTensors saved = saved_tensors(found.saved);
    EXPECT_LE(distance(saved.weights, expected.weights), tolerance::kLayoutFp32);
    EXPECT_EQ(corrections(saved), biases);
  }
}

TEST_F(ExpertRuns, GoOnToTheBit) {
  for (const char* flags : {"", "--bf16 --ranks 2 --use-distributed-optimizer"}) {
    const std::string name = *flags == '\0' ? "f32" : "bf16";
    const TrainResult straight = run(settings(name + "a", flags));
    settings::TrainSettings s = settings(name + "b", flags);
    s.checkpoint.load = s.checkpoint.save;
    s.checkpoint.exit_interval = 2;
    std::vector<double> all = losses(run(s));
    s.checkpoint.exit_interval.reset();
    const TrainResult rest = run(s);
    ASSERT_EQ(rest.first_iteration, 2);
    for (const double loss : losses(rest)) all.push_back(loss);
    EXPECT_TRUE(same_bits(all, losses(straight))) << flags;
    const SavedTensors ours = saved_tensors(rest.saved), theirs = saved_tensors(straight.saved);
    EXPECT_EQ(corrections(ours).size(), 3u);
    EXPECT_EQ(ours.weights, theirs.weights) << flags;
    EXPECT_EQ(ours.states, theirs.states) << flags;
  }
}

// The bias of quantile balancing is saved as a module state, like the bias of
// --moe-router-enable-expert-bias.
TEST_F(ExpertRuns, GoOnWithTheBiasOfQuantiles) {
  const auto quantiles = [&](const std::string& name) {
    settings::TrainSettings s =
        with_flags(deep_llama(),
                   "--num-experts 4 --moe-ffn-hidden-size 24 --moe-router-load-balancing-type "
                   "quantile_balancing --moe-router-quantile-balancing-ema 0.5");
    s.batch.train_iters = 4;
    s.checkpoint.save = folder_ / name;
    return s;
  };
  const TrainResult straight = run(quantiles("a"));
  settings::TrainSettings s = quantiles("b");
  s.checkpoint.load = s.checkpoint.save;
  s.checkpoint.exit_interval = 2;
  run(s);
  s.checkpoint.exit_interval.reset();
  const TrainResult rest = run(s);
  ASSERT_EQ(rest.first_iteration, 2);
  const Tensors biases = corrections(saved_tensors(rest.saved));
  ASSERT_EQ(biases.size(), 4u);
  for (const auto& [name, values] : biases) EXPECT_NE(values, std::vector<double>(4)) << name;
  EXPECT_EQ(biases, corrections(saved_tensors(straight.saved)));
  EXPECT_EQ(saved_tensors(rest.saved).weights, saved_tensors(straight.saved).weights);
}

TEST_F(ExpertRuns, GoOnWithOtherExpertRanks) {
  const std::vector<double> one = losses(run(settings("one")));
  const std::string staged =
      std::string(kExpertRanks) + " --pipeline-model-parallel-size 2 --ranks 4";
  int number = 0;
  for (const auto& [before, after] :
       {std::pair<std::string, std::string>{"", kShardedExperts},
        {kShardedExperts, kExpertsOfTensorRanks},
        {kExpertsOfTensorRanks, staged},
        {staged, kSlicedExperts},
        {kSlicedExperts, "--ranks 4 --expert-model-parallel-size 4"}}) {
    SCOPED_TRACE(before + " to " + after);
    const std::string name = std::to_string(number++);
    settings::TrainSettings s = settings(name, before);
    s.checkpoint.load = s.checkpoint.save;
    s.checkpoint.exit_interval = 2;
    std::vector<double> all = losses(run(s));
    s = settings(name, after);
    s.checkpoint.load = s.checkpoint.save;
    const TrainResult rest = run(s);
    ASSERT_EQ(rest.first_iteration, 2);
    for (const double loss : losses(rest)) all.push_back(loss);
    EXPECT_LE(distance(all, one), tolerance::kLayoutFp32);
  }
}

// With a capacity per sequence, the dropped tokens depend neither on the ranks, which may divide
// sequences, nor on padding of rows.
TEST_F(ExpertRuns, DropTheSameTokensInEveryLayout) {
  const std::string capacity = "--moe-expert-capacity-factor 0.75 ";
  int number = 0;
  for (const std::string policy : {"probs", "position"}) {
    const std::string flags = capacity + "--moe-token-drop-policy " + policy + " ";
    const TrainResult alone = run(settings("one " + policy, flags));
    const std::vector<double> one = losses(alone);
    EXPECT_GT(metric(alone.iterations[0], "dropped_share"), 0.05);
    EXPECT_NE(one[0], losses(run(settings("all " + policy)))[0]);
    for (const std::string& layout :
         {std::string("--moe-pad-expert-input-to-capacity"), std::string(kExpertRanks),
          std::string("--moe-pad-expert-input-to-capacity ") + kShardedExperts,
          std::string("--recompute-granularity selective --recompute-modules moe"),
          std::string("--recompute-granularity selective --recompute-modules moe_act"),
          std::string(kSlicedExperts),
          std::string("--ranks 2 --context-parallel-size 2 --cp-comm-type all_gather "
                      "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"),
          std::string("--ranks 4 --context-parallel-size 2 --tensor-model-parallel-size 2 "
                      "--sequence-parallel --expert-tensor-parallel-size 1 "
                      "--moe-pad-expert-input-to-capacity")}) {
      SCOPED_TRACE(layout);
      const TrainResult found = run(settings(std::to_string(number++), flags + layout));
      EXPECT_LE(distance(losses(found), one), tolerance::kLayoutFp32);
      for (size_t l = 0; l < 3; ++l)
        EXPECT_EQ(layers(found.iterations[0], "dropped_share")[l].value,
                  layers(alone.iterations[0], "dropped_share")[l].value);
    }
  }
}

// Neither the dispatcher nor the overlapped compute changes a bit.
TEST_F(ExpertRuns, HowTokensTravelChangesNoBit) {
  const std::string all_to_all = "--moe-token-dispatcher-type alltoall ",
                    beside = "--overlap-moe-expert-parallel-comm ";
  int number = 0;
  for (const std::string& layout :
       {std::string(kExpertRanks), std::string(kExpertRanks) + " --bf16",
        std::string(kSlicedExperts), std::string(kExpertsOfTensorRanks),
        std::string("--ranks 4 --expert-model-parallel-size 4 --use-distributed-optimizer "
                    "--moe-expert-capacity-factor 0.75 --micro-batch-size 1"),
        std::string(kExpertRanks) + " --ranks 4 --pipeline-model-parallel-size 2 "
                                    "--micro-batch-size 1"}) {
    const auto trained = [&](const std::string& flags) {
      settings::TrainSettings s = settings(std::to_string(number++), layout + " " + flags);
      s.batch.train_iters = 2;
      return run(s);
    };
    const TrainResult waited = trained("");
    const SavedTensors expected = saved_tensors(waited.saved);
    std::vector<std::string> ways = {all_to_all, all_to_all + "--moe-shared-expert-overlap"};
    if (layout != kSlicedExperts) {  // kSlicedExperts gathers parameters one layer at a time
      ways.push_back(beside + "--recompute-granularity selective --recompute-modules moe_act");
      ways.push_back(beside + all_to_all);
    }
    if (layout.find("pipeline") != std::string::npos)
      ways.push_back(beside + "--num-virtual-stages-per-pipeline-rank 2");
    for (const std::string& way : ways) {
      SCOPED_TRACE(layout + " " + way);
      const TrainResult found = trained(way);
      EXPECT_TRUE(same_bits(losses(found), losses(waited)));
      EXPECT_TRUE(same_bits(norms(found), norms(waited)));
      EXPECT_EQ(saved_tensors(found.saved).weights, expected.weights);
    }
  }
}

// Buffers for any load and for twice an even load give the same bits. If the buffer is too small,
// the run ends on all ranks before the first update, with every recompute mode.
TEST_F(ExpertRuns, HaveRoomForWhatTheirRanksExpertsAreGiven) {
  const std::string room = " --moe-expert-rank-capacity-factor ";
  EXPECT_TRUE(same_bits(losses(run(settings("any", kExpertRanks))),
                        losses(run(settings("two", kExpertRanks + room + "2")))));
  for (const std::string& flags :
       {std::string(kExpertRanks), std::string(kExpertsOfTensorRanks), std::string(kSlicedExperts),
        kExpertRanks + std::string(" --recompute-granularity selective "
                                   "--recompute-modules moe")}) {
    SCOPED_TRACE(flags);
    try {
      run(settings("none", flags + room + "1"));
      ADD_FAILURE() << "every load was even";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--moe-expert-rank-capacity-factor 1 provides"),
                std::string::npos)
          << error.what();
    }
  }
}

// Losses that balance the load change the gradients, and they change the reported loss only through
// the weights.
TEST_F(ExpertRuns, LossesOfTheRouterTrain) {
  const TrainResult with = run(settings("with")),
                    without = run(settings("without",
                                           "--moe-router-load-balancing-type none "
                                           "--moe-aux-loss-coeff 0 "
                                           "--moe-z-loss-coeff 0"));
  EXPECT_EQ(losses(with)[0], losses(without)[0]);
  EXPECT_NE(norms(with)[0], norms(without)[0]);
  EXPECT_NE(losses(with)[3], losses(without)[3]);
  // An even load gives 1. With k of E experts per token the maximum is E / k.
  EXPECT_GE(metric(with.iterations[0], "aux_loss"), 0.9);
  EXPECT_LE(metric(with.iterations[0], "aux_loss"), 2);
  EXPECT_TRUE(std::isnan(metric(without.iterations[0], "aux_loss")));
}

TEST_F(ExpertRuns, OfTheSmallestSizes) {
  const std::string alone =
      " --moe-layer-freq 1 --moe-router-load-balancing-type aux_loss"
      " --moe-aux-loss-coeff 0.05";
  for (const std::string& flags :
       {std::string("--num-experts 1 --moe-router-topk 1"), std::string("--moe-router-topk 4"),
        std::string("--num-experts 7 --moe-router-topk 1"),
        std::string("--seq-length 2 --micro-batch-size 1")}) {
    SCOPED_TRACE(flags);
    const auto trained = [&](const std::string& ranks) {
      settings::TrainSettings s = settings("", flags + alone + ranks);
      s.checkpoint.save.reset();
      return run(s);
    };
    const TrainResult one = trained(""), two = trained(" --ranks 2");
    ASSERT_EQ(one.iterations.size(), 4u);
    for (const double loss : losses(one)) EXPECT_TRUE(std::isfinite(loss));
    EXPECT_LE(distance(losses(two), losses(one)), tolerance::kLayoutFp32);
  }
}

}  // namespace
}  // namespace megatron::training
