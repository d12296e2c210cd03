// Frozen parameters (--freeze): any layout gives the results of one rank, the gradients of the
// others are those of a run that trains everything, and frozen tensors keep every bit.
#include <gtest/gtest.h>

#include "base/tolerances.h"
#include "selftest/experiment.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest::freeze_test {
namespace {

using models::ModelFlags;
using parallel::ScheduleKind;
using parallel::Sharding;
using Granularity = models::RecomputeOptions::Granularity;

constexpr int64_t kTokens = 16, kPerStep = 8;

ModelFlags llama() {
  ModelFlags flags = tiny_models()[1].flags;
  flags.num_layers = 4;
  return flags;
}

ModelFlags tied_gpt2() {
  ModelFlags flags = tiny_models()[0].flags;
  flags.num_layers = 4;
  return flags;
}

ModelFlags experts() {
  ModelFlags flags = llama();
  flags.moe.num_experts = 4;
  flags.moe.ffn_hidden_size = 12;
  flags.moe.layer_freq = "[0,1,1,1]";
  flags.moe.score = kernels::RouterScore::sigmoid;
  flags.moe.enable_expert_bias = true;
  flags.moe.shared_ffn = 16;
  flags.moe.load_balancing_type = {"seq_aux_loss"};
  flags.moe.aux_loss_coeff = {"0.1"};
  flags.moe.z_loss_coeff = 0.01;
  flags.moe.bias_update_rate = 0.05;
  return flags;
}

// Layouts of a dense model of four layers.
std::vector<Layout> dense_layouts() {
  const models::RecomputeOptions whole{.granularity = Granularity::full},
      parts{.granularity = Granularity::selective, .modules = {"core_attn", "mlp", "layernorm"}};
  return {
      {.dp = 2, .micro_batch = 2},
      {.dp = 2, .sharding = Sharding::optimizer, .overlap = true, .micro_batch = 2},
      {.dp = 2, .sharding = Sharding::gradients, .micro_batch = 4},
      {.dp = 2, .sharding = Sharding::parameters, .overlap = true, .micro_batch = 2},
      {.dp = 4, .sharding = Sharding::optimizer, .instances = 2, .micro_batch = 2},
      {.tp = 2, .sequence = true, .micro_batch = 4},
      {.tp = 2, .recompute = whole, .micro_batch = 4},
      {.cp = 2, .recompute = parts, .micro_batch = 4},
      {.pipeline = {.stages = 2}, .micro_batch = 2},
      {.pipeline = {.stages = 4}, .recompute = whole, .overlap = true, .micro_batch = 2},
      {.pipeline = {ScheduleKind::interleaved, 2, 2}, .overlap = true, .micro_batch = 2},
      {.pipeline = {ScheduleKind::zero_bubble_h1, 2}, .recompute = parts, .micro_batch = 2},
      {.pipeline = {ScheduleKind::zero_bubble_v, 2, 2}, .micro_batch = 2},
      {.tp = 2,
       .dp = 2,
       .sequence = true,
       .pipeline = {.stages = 2},
       .sharding = Sharding::parameters,
       .micro_batch = 2},
      {.offload = {.layers = 2}, .optimizer_offload = 0.5, .micro_batch = 2},
  };
}

std::vector<Layout> expert_layouts() {
  return {{.dp = 2, .ep = 2, .micro_batch = 2},
          {.dp = 4, .ep = 2, .sharding = Sharding::optimizer, .micro_batch = 2},
          {.tp = 2,
           .dp = 2,
           .ep = 2,
           .sequence = true,
           .sharding = Sharding::parameters,
           .recompute = {.granularity = Granularity::full},
           .micro_batch = 2},
          {.dp = 2,
           .ep = 2,
           .pipeline = {.stages = 2},
           .overlap = true,
           .dispatcher = parallel::TokenDispatcher::alltoall,
           .micro_batch = 2}};
}

struct Frozen {
  std::string name;
  ModelFlags (*flags)();
  std::vector<std::string> patterns;
};

void PrintTo(const Frozen& f, std::ostream* out) { *out << f.name; }

const std::vector<Frozen> kFrozen = {
    {"first_layers", llama, {"model.embed_tokens.weight", "model.layers.[01].*"}},
    {"last_layers", llama, {"model.layers.[23].*", "model.norm.weight", "lm_head.weight"}},
    {"all_but_attention", llama, {"model.embed*", "*norm*", "*mlp*", "lm_head.weight"}},
    {"all_but_the_head", llama, {"model.*"}},
    {"all_but_biases", tied_gpt2, {"*.weight"}},
    {"table", tied_gpt2, {"transformer.wte.weight"}},
    {"all_but_the_table", tied_gpt2, {"transformer.h.*", "transformer.wpe*", "transformer.ln_f*"}},
    {"experts", experts, {"embedding.weight", "layers.[01].*", "*experts*"}},
    {"routers", experts, {"*router*", "*attention*"}}};

class Freeze : public ::testing::TestWithParam<Frozen> {
 protected:
  Experiment experiment(DeviceKind device, DType type) const {
    return Experiment(models::model_from_flags(GetParam().flags(), 0), device, type, DType::f64,
                      settings::LossScope::token, kPerStep, kTokens, environment_);
  }
  Layout frozen(Layout layout) const {
    layout.freeze = GetParam().patterns;
    return layout;
  }

  Environment environment_;
};

TEST_P(Freeze, GivesTheResultsOfOneRankInAnyLayout) {
  const Experiment of = experiment(DeviceKind::reference, DType::f64);
  const std::vector<optim::Method> methods = {optim::Method::sgd, optim::Method::adam};
  const selftest::Outcome expected = of.run(frozen({.micro_batch = 4}), methods);
  EXPECT_GT(expected.gradient_norms.at(0), 0);
  const bool sparse = GetParam().flags().moe.num_experts.has_value();
  for (const Layout& layout : sparse ? expert_layouts() : dense_layouts()) {
    Report report(GetParam().name);
    const selftest::Outcome outcome = of.run(frozen(layout), methods);
    compare_outcomes(layout.str(), outcome, expected, tolerance::kLayoutFp64, report);
    EXPECT_EQ(outcome.gradients.size(), expected.gradients.size()) << layout.str();
    for (const auto& [name, values] : expected.parameters) {
      if (expected.gradients.contains(name)) continue;
      EXPECT_EQ(outcome.parameters.at(name), values) << name << ", " << layout.str();
    }
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

// Compares the first gradients with those of a run that trains everything.
TEST_P(Freeze, ChangesNoBitOfTheOtherGradients) {
  for (const auto& [device, type] :
       {std::pair{DeviceKind::reference, DType::f64}, std::pair{DeviceKind::cpu, DType::f32},
        std::pair{DeviceKind::cpu, DType::bf16}}) {
    const Experiment of = experiment(device, type);
    const selftest::Outcome all = of.run({.micro_batch = 4}, {optim::Method::sgd}),
                            some = of.run(frozen({.micro_batch = 4}), {optim::Method::sgd});
    size_t moved = 0;
    for (const auto& [name, gradient] : all.gradients) {
      if (some.parameters.at(name) != all.parameters.at(name)) ++moved;
      const auto found = some.gradients.find(name);
      if (found == some.gradients.end()) continue;
      EXPECT_EQ(found->second, gradient) << name;
    }
    EXPECT_GT(some.gradients.size(), 0u);
    EXPECT_LT(some.gradients.size(), all.gradients.size());
    EXPECT_GT(moved, 0u);
    EXPECT_EQ(all.losses.at(optim::Method::sgd)[0], some.losses.at(optim::Method::sgd)[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Freeze, ::testing::ValuesIn(kFrozen),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace megatron::selftest::freeze_test
