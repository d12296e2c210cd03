// --hybrid-layer-pattern and the flags of state spaces: the models that they describe, the
// parameters' properties that training reads, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/decoder/definition.h"
#include "models/decoder/flags.h"
#include "models/hybrid_pattern.h"
#include "models/stage.h"
#include "optim/muon.h"
#include "text.h"

namespace megatron::models {
namespace {

using testing::error_of;
using testing::expect_contains;

ModelFlags hybrid_flags(const std::string& pattern) {
  ModelFlags flags;
  flags.hybrid_layer_pattern = pattern;
  flags.hidden_size = 32;
  flags.num_attention_heads = 4;
  flags.vocab_size = 61;
  flags.mamba_head_dim = 8;
  flags.mamba_num_groups = 2;
  flags.mamba_state_dim = 12;
  flags.position_embedding = PositionEmbedding::none;
  flags.normalization = nn::Normalization::rms_norm;
  flags.add_bias_linear = false;
  flags.squared_relu = true;
  flags.hidden_dropout = flags.attention_dropout = 0;
  flags.untie = true;
  return flags;
}
std::string pattern_refusal(const std::string& pattern,
                            const std::function<void(ModelFlags&)>& change) {
  ModelFlags flags = hybrid_flags(pattern);
  change(flags);
  return error_of([&] { model_from_flags(flags, 16); });
}
std::string pattern_refusal(const std::string& pattern) {
  return pattern_refusal(pattern, [](ModelFlags&) {});
}

TEST(HybridPattern, IsOneBlockForEachLetter) {
  const DecoderValue value = value_of(hybrid_flags("M-|*M-"), 16);
  ASSERT_EQ(value.num_layers(), 5);
  const nn::StateSpaceConfig* space = value.layer(0).state_space();
  ASSERT_NE(space, nullptr);
  EXPECT_EQ(space->heads, 8) << "2 x 32 / 8";
  EXPECT_EQ(space->states, 12);
  EXPECT_TRUE(std::holds_alternative<NoOp>(value.layer(0).feed_forward));
  EXPECT_NE(value.layer(1).mlp(), nullptr);
  EXPECT_TRUE(std::holds_alternative<NoOp>(value.layer(1).mixer));
  EXPECT_NE(value.layer(2).attention(), nullptr);
  EXPECT_NE(value.layer(3).state_space(), nullptr);
  EXPECT_EQ(hybrid_layout("M-|*M-"), "Ett|tttL");
  EXPECT_EQ(hybrid_layout("M-"), "");
  const Model model = model_from_flags(hybrid_flags("M-*M-"), 16);
  EXPECT_EQ(model->family(), "nemotron_h");
  EXPECT_EQ(model->facts().hybrid_pattern, "M-*M-");
  EXPECT_TRUE(model->is_surplus("mtp.layers.0.mixer.q_proj.weight"));
  EXPECT_FALSE(model->is_surplus("backbone.layers.0.mixer.q_proj.weight"));
  EXPECT_EQ(model_from_flags(hybrid_flags("MM"), 16)->family(), "mamba2");
  ModelFlags experts = hybrid_flags("ME");
  experts.moe.num_experts = 4;
  experts.moe.score = kernels::RouterScore::sigmoid;
  experts.moe.enable_expert_bias = true;
  experts.moe.shared_ffn = 24;
  EXPECT_EQ(model_from_flags(experts, 16)->family(), "nemotron_h");
}

// Where Megatron-LM put the layers of these shares; the first is that of its example script.
TEST(HybridPattern, IsMadeOfShares) {
  EXPECT_EQ(allocated_layers(48, 0.08, 0.5), "M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-");
  EXPECT_EQ(allocated_layers(10, 0.3, 0.2), "MM*M-*M*M-");
  EXPECT_EQ(allocated_layers(10, 0, 0.3), "MM-MMM-MM-");
  EXPECT_EQ(allocated_layers(9, 0, 0), "MMMMMMMMM");
  EXPECT_EQ(allocated_layers(6, 0.5, 0.5), "-*-**-") << "no state space is left";
  for (const auto& [attention, mlp] : {std::pair(-0.1, 0.5), {0.6, 0.5}, {NAN, 0.0}})
    expect_contains(error_of([&] { allocated_layers(4, attention, mlp); }),
                    {"--hybrid-attention-ratio", "--hybrid-mlp-ratio", "1 at most"});
  ModelFlags flags = hybrid_flags("");
  flags.hybrid_layer_pattern.reset();
  EXPECT_EQ(flags.layer_pattern(), std::nullopt);
  const std::string module = "megatron.core.models.mamba.mamba_layer_specs";
  flags.num_layers = 4;
  flags.spec = {module, "mamba_stack_spec"};
  EXPECT_EQ(value_of(flags, 16).num_layers(), 4);
  EXPECT_EQ(flags.layer_pattern(), "MMMM");
  flags.spec = {"local"};
  EXPECT_EQ(flags.layer_pattern(), std::nullopt);
  flags.hybrid_mlp_ratio = 0.5;
  EXPECT_EQ(flags.layer_pattern(), "M-M-");
  for (const std::vector<std::string>& spec :
       {std::vector<std::string>{"mine.specs", "mamba_stack_spec"},
        {module, "attention_layer_spec"},
        {module}})
    expect_contains(error_of([&] { names_hybrid_stack(spec); }),
                    {"--spec " + spec[0], "no Python here", "mamba_stack_spec"});
  flags = hybrid_flags("MM");
  flags.spec = {"mine.specs", "mamba_stack_spec"};
  expect_contains(error_of([&] { value_of(flags, 16); }), {"--spec mine.specs"});
}

TEST(HybridPattern, RefusesLettersAndFlagsByName) {
  expect_contains(pattern_refusal("MG"),
                  {"--hybrid-layer-pattern", "'MG'", "'G', a gated delta net"});
  expect_contains(pattern_refusal("MD"), {"'D', sparse attention"});
  expect_contains(pattern_refusal("M-/M"), {"'/', the layers of multi-token prediction"});
  expect_contains(pattern_refusal("Mx"), {"'x', which is not supported", "M (state space)"});
  expect_contains(pattern_refusal("||"), {"has 0 layers"});
  expect_contains(pattern_refusal("M*+"), {"*", "+", "one of them"});
  expect_contains(pattern_refusal("ME"), {"'E'", "--num-experts", "not given"});
  expect_contains(pattern_refusal("M-", [](ModelFlags& f) { f.moe.num_experts = 4; }),
                  {"no letter 'E'", "--num-experts is given"});
  expect_contains(pattern_refusal("M+"), {"'+'", "--multi-latent-attention", "not given"});
  expect_contains(pattern_refusal("M-", [](ModelFlags& f) { f.mtp_num_layers = 1; }),
                  {"--mtp-num-layers", "mutually exclusive"});
  expect_contains(pattern_refusal("M-|M", [](ModelFlags& f) { f.num_layers = 4; }),
                  {"--num-layers is 4", "--hybrid-layer-pattern 'M-|M'", "3 layers", "leave out"});
  EXPECT_EQ(pattern_refusal("M-|M", [](ModelFlags& f) { f.num_layers = 3; }), "");
  expect_contains(pattern_refusal("M", [](ModelFlags& f) { f.mamba_num_groups = 3; }),
                  {"--mamba-num-heads 8", "--mamba-num-groups 3"});
  expect_contains(pattern_refusal("M", [](ModelFlags& f) { f.mamba_head_dim = 24; }),
                  {"--hidden-size 32", "--mamba-head-dim 24", "--mamba-num-heads"});
}

// As Megatron-LM: numbers of heads in fp32, one-dimensional parameters without weight decay, and
// the input projection and the convolution not updated by Muon.
TEST(StateSpaceParameters, HaveTheirTypesDecayAndInitialValues) {
  Runtime runtime({DeviceKind::reference, 0}, 1);
  const Model model = model_from_flags(hybrid_flags("M"), 16);
  const auto stage = model.build(runtime, DType::f32, 0);
  const auto bf16 = model.build(runtime, DType::bf16, 0);
  const auto find = [](const Stage& in, const std::string& suffix) {
    const auto found = std::ranges::find_if(in.parameters(), [&](const auto* placed) {
      return placed->parameter.name == "layers.0.attention.state_space." + suffix;
    });
    EXPECT_NE(found, in.parameters().end()) << suffix;
    return *found;
  };
  for (const char* name : {"a_log", "dt_bias", "d"}) {
    EXPECT_EQ(find(*bf16, name)->parameter.value.dtype(), DType::f32) << name;
    EXPECT_FALSE(find(*bf16, name)->decay) << name;
  }
  EXPECT_FALSE(find(*stage, "norm.weight")->decay);
  EXPECT_FALSE(find(*stage, "conv.bias")->decay);
  EXPECT_TRUE(find(*stage, "conv.weight")->decay);
  EXPECT_FALSE(optim::takes(*find(*stage, "conv.weight")));
  EXPECT_FALSE(optim::takes(*find(*stage, "in_proj.weight")));
  EXPECT_TRUE(optim::takes(*find(*stage, "out_proj.weight")));

  initialize(*stage, 3, runtime.stream());
  for (const double v : to_doubles(find(*stage, "a_log")->parameter.value)) {
    EXPECT_GE(v, 0);
    EXPECT_LT(v, std::log(16));
  }
  std::vector<double> steps;
  for (const double v : to_doubles(find(*stage, "dt_bias")->parameter.value))
    steps.push_back(std::log1p(std::exp(v)));
  for (const double step : steps) {
    EXPECT_GE(step, 1e-3 * (1 - 1e-5));
    EXPECT_LE(step, 0.1 * (1 + 1e-5));
  }
  EXPECT_GT(std::ranges::max(steps), 2 * std::ranges::min(steps));
  for (const double v : to_doubles(find(*stage, "d")->parameter.value)) EXPECT_EQ(v, 1);
  for (const double v : to_doubles(find(*stage, "conv.weight")->parameter.value))
    EXPECT_LE(std::abs(v), 0.5) << "1 / sqrt(4)";
  // One block a layer: matrices that produce a block's output have std / sqrt(layers).
  EXPECT_DOUBLE_EQ(find(*stage, "out_proj.weight")->init.scale, 0.02);
}

}  // namespace
}  // namespace megatron::models
