// Flags for the balance of experts: the resulting settings, and refused combinations.
#include "models/moe_flags.h"

#include <gtest/gtest.h>

#include "models/model.h"
#include "models/model_flags.h"
#include "text.h"

namespace megatron::models {
namespace {

using testing::error_of;
using testing::has;

ModelFlags routed(const std::function<void(MoeFlags&)>& change) {
  ModelFlags flags;
  flags.num_layers = 2;
  flags.hidden_size = 16;
  flags.num_attention_heads = 2;
  flags.vocab_size = 32;
  flags.moe.num_experts = 4;
  change(flags.moe);
  return flags;
}
std::string refusal(const std::function<void(MoeFlags&)>& change) {
  return error_of([&] { model_from_flags(routed(change), 16); });
}

TEST(MoeFlags, TypesOfBalancingAreRead) {
  MoeFlags flags;
  flags.load_balancing_type = {"global_aux_loss", "aux_loss"};
  flags.aux_loss_coeff = {"0.5", "0.25"};
  EXPECT_EQ(flags.training().global_aux_loss, 0.5);
  EXPECT_EQ(flags.training().aux_loss, 0.25);
  flags.aux_loss_coeff = {"0"};
  flags.load_balancing_type = {"sinkhorn"};
  EXPECT_TRUE(flags.training().sinkhorn);
  flags.load_balancing_type = {"quantile_balancing"};
  EXPECT_TRUE(flags.training().quantile);
}

TEST(MoeFlags, TrainingIsWhatTheySay) {
  MoeFlags flags;
  flags.load_balancing_type = {"quantile_balancing"};
  flags.quantile_ema = 0.5;
  flags.input_jitter = 0.25;
  flags.double_logits = true;
  flags.force_biased = -2;
  flags.force_load_balancing = true;
  const nn::RouterTraining training = flags.training();
  EXPECT_TRUE(training.quantile);
  EXPECT_EQ(training.quantile_ema, 0.5);
  EXPECT_EQ(training.input_jitter, 0.25);
  EXPECT_TRUE(training.double_logits);
  EXPECT_EQ(training.logits_bias, -2);
  EXPECT_TRUE(training.random_logits);
}

TEST(MoeFlags, WhatDoesNotGoTogetherIsRefused) {
  const auto type = [](std::vector<std::string> types, const std::string& coefficient) {
    return [=](MoeFlags& m) {
      m.load_balancing_type = types;
      m.aux_loss_coeff = {coefficient};
    };
  };
  EXPECT_TRUE(has(refusal(type({"sinkhorn"}, "0.1")), "--moe-aux-loss-coeff is 0.1"));
  EXPECT_TRUE(has(refusal(type({"sinkhorn", "aux_loss"}, "0")), "sinkhorn cannot be combined"));
  EXPECT_TRUE(has(refusal(type({"aux_loss", "quantile_balancing"}, "0")),
                  "quantile_balancing cannot be combined"));
  EXPECT_TRUE(has(refusal(type({"even"}, "0")), "even is not supported; use aux_loss"));
  const auto quantile = [](auto change) {
    return [change](MoeFlags& m) {
      m.load_balancing_type = {"quantile_balancing"};
      change(m);
    };
  };
  EXPECT_TRUE(has(refusal(quantile([](MoeFlags& m) { m.topk = 4; })), "below --num-experts 4"));
  EXPECT_TRUE(has(refusal(quantile([](MoeFlags& m) { m.num_groups = m.group_topk = 2; })),
                  "leave out --moe-router-num-groups 2"));
  EXPECT_TRUE(has(refusal(quantile([](MoeFlags& m) {
                    m.score = kernels::RouterScore::sigmoid;
                    m.enable_expert_bias = true;
                  })),
                  "leave out --moe-router-enable-expert-bias"));
  EXPECT_TRUE(has(refusal(quantile([](MoeFlags& m) { m.quantile_ema = 1; })),
                  "--moe-router-quantile-balancing-ema is 1; it must lie in [0, 1)"));
  EXPECT_TRUE(has(refusal([](MoeFlags& m) {
                    m.load_balancing_type = {"sinkhorn"};
                    m.topk = 1;
                    m.score = kernels::RouterScore::sigmoid;
                    m.enable_expert_bias = true;
                  }),
                  "sinkhorn chooses experts without a bias"));
  EXPECT_TRUE(has(refusal([](MoeFlags& m) { m.load_balancing_type = {"aux_loss", "aux_loss"}; }),
                  "names aux_loss more than once"));
  EXPECT_TRUE(has(refusal([](MoeFlags& m) { m.input_jitter = 1.5; }),
                  "--moe-input-jitter-eps is 1.5; it must lie in [0, 1]"));
  EXPECT_TRUE(has(refusal([](MoeFlags& m) {
                    m.load_balancing_type = {"sinkhorn"};
                    m.score = kernels::RouterScore::sigmoid;
                  }),
                  "leave out --moe-router-score-function"));
}

}  // namespace
}  // namespace megatron::models
