// Files of --te-precision-config-file: what they say of modules, and errors that name the line.
#include "settings/precision_file.h"

#include <gtest/gtest.h>

#include <set>

#include "models/model_flags.h"
#include "models/module_precision.h"
#include "text.h"

namespace megatron::settings::precision_file_test {
namespace {

using megatron::testing::error_of;
using megatron::testing::has;

constexpr const char* kConfigs = R"(configs:
  bf16: {transformer_engine_config_type: TEQuantizationParams, training_recipe: {}}
  mxfp8:
    transformer_engine_config_type: "TEQuantizationParams"
    training_recipe:
      fp8_quantization_recipe: mxfp8
      fp8_format: hybrid
    evaluation_recipe: {fp8_format: hybrid, fp8_quantization_recipe: mxfp8}
  everywhere:
    transformer_engine_config_type: TEQuantizationParams
    training_recipe: {fp4_quantization_recipe: nvfp4, override_nonquantized_autocast: true}
  kept:
    transformer_engine_config_type: TEQuantizationParams
    training_recipe: {fp8_quantization_recipe: blockwise, override_quantized_autocast: false}
)";
constexpr const char* kMatchers = R"(matchers:
  off: {type: glob, pattern: "*", config: bf16}
  down: {type: glob, pattern: "*.linear_fc2", config: bf16, enabled: true}
  first: {type: glob, pattern: "layers.[01].mlp.*", config: mxfp8, enabled: yes}
  kept: {type: glob, pattern: "*.qkv", config: kept, enabled: true}
  last: {type: glob, pattern: "*3.*proj", config: everywhere, enabled: true}
)";

// The first enabled matcher counts; whether it holds depends on what the flags say.
TEST(PrecisionFile, SaysWhatModulesAre) {
  LowPrecisionLayers low{.formats = {.recipe = LowPrecisionRecipe::tensorwise},
                         .left_out_at_start = 1,
                         .left_out_at_end = 1,
                         .rules = parse_precision_rules(std::string(kConfigs) + kMatchers, "f")};
  ASSERT_EQ(low.rules.size(), 4U);
  const auto text = [&](int64_t layer, const std::string& module) -> std::string {
    const auto formats = models::formats_of(
        low, layer, {.layers = 4}, "layers." + std::to_string(layer) + "." + module + ".weight");
    return formats ? models::formats_text(*formats) : "none";
  };
  const std::string tensorwise = "e4m3, gradients in e5m2, tensorwise scales",
                    nvfp4 = "e2m1, nvfp4 scales";
  EXPECT_EQ(text(1, "mlp.down"), "none");
  EXPECT_EQ(text(1, "mlp.up"), "e4m3, gradients in e5m2, mxfp8 scales");
  EXPECT_EQ(text(0, "mlp.up"), "none");  // left out by flags
  EXPECT_EQ(text(2, "mlp.up"), tensorwise);
  EXPECT_EQ(text(2, "attention.qkv"), tensorwise);
  EXPECT_EQ(text(3, "attention.output"), nvfp4);
  EXPECT_EQ(text(2, "attention.output"), tensorwise);
  low.by_rules_alone = true;
  EXPECT_EQ(text(1, "mlp.up"), "none");
  EXPECT_EQ(text(2, "attention.output"), "none");
  EXPECT_EQ(text(3, "attention.output"), nvfp4);
}

TEST(PrecisionFile, ErrorsNameTheLine) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_precision_rules(text, "p.yaml"); });
  };
  const auto with_recipe = [](const std::string& recipe) {
    return "configs:\n  a:\n    transformer_engine_config_type: TEQuantizationParams\n"
           "    training_recipe: {" +
           recipe + "}\nmatchers: {m: {type: glob, pattern: x, config: a, enabled: true}}\n";
  };
  EXPECT_EQ(error(with_recipe("")), "");
  const std::string configs = kConfigs;
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"", {"p.yaml is empty"}},
      {"- a", {"p.yaml:1:", "configs, matchers"}},
      {configs, {"p.yaml:1:", "has no matchers"}},
      {configs + "rules: {}", {"p.yaml:15:", "unknown key 'rules'"}},
      {configs + "matchers:\n  m: {type: glob, pattern: x, config: bf16}",
       {"p.yaml:16:", "enabled"}},
      {configs + "matchers:\n  m: {type: glob, pattern: x, config: fp8, enabled: true}",
       {"p.yaml:16:", "'fp8'", "bf16, everywhere, kept, mxfp8"}},
      {configs + "matchers:\n  m: {type: re, pattern: x, config: bf16}", {"p.yaml:16:", "'re'"}},
      {configs + "matchers:\n  m: {type: glob, config: bf16}", {"p.yaml:16:", "no pattern"}},
      {configs + "matchers:\n  m: {type: glob, pattern: x, config: bf16, enabled: 2}",
       {"p.yaml:16:", "true or false"}},
      {configs + "matchers: {m: 1, m: 2}", {"p.yaml:15:", "'m' twice"}},
      {"configs: {a: {kitchen_config_type: QLinearParams}}\nmatchers: {}",
       {"p.yaml:1:", "'kitchen_config_type'"}},
      {with_recipe("fp8_recipe: mxfp8"), {"p.yaml:4:", "'fp8_recipe'", "fp8_quantization_recipe"}},
      {with_recipe("fp8_quantization_recipe: delayed"), {"p.yaml:4:", "'delayed'", "--fp8-recipe"}},
      {with_recipe("fp4_quantization_recipe: custom"), {"p.yaml:4:", "'custom'", "nvfp4"}},
      {with_recipe("fp8_format: e5m2"), {"p.yaml:4:", "'e5m2'", "hybrid"}},
      {with_recipe("fp8_quantization_recipe: mxfp8, fp4_quantization_recipe: nvfp4"),
       {"p.yaml:4:", "one of them"}},
      {with_recipe("custom_recipe_factory: a.b"), {"p.yaml:4:", "'a.b'"}},
      {"configs:\n  a: {transformer_engine_config_type: TEQuantizationParams, training_recipe: {}, "
       "evaluation_recipe: {fp8_quantization_recipe: mxfp8}}\nmatchers: {}",
       {"p.yaml:2:", "evaluation_recipe"}},
      {"configs: {", {"p.yaml:", "not valid YAML"}}};
  for (const auto& [text, parts] : bad)
    for (const std::string& part : parts)
      EXPECT_TRUE(has(error(text), part)) << part << " in: " << error(text) << "\n" << text;
}

// Every linear layer has Megatron-LM's name.
TEST(ModulePrecision, KnowsTheNamesOfMegatron) {
  models::ModelFlags flags{
      .num_layers = 1, .hidden_size = 32, .num_attention_heads = 4, .vocab_size = 61};
  models::ModelFlags experts = flags, latent = flags, hybrid = flags;
  experts.moe.num_experts = 4;
  experts.moe.topk = 2;
  experts.moe.ffn_hidden_size = 16;
  experts.moe.shared_ffn = 16;
  experts.moe.latent_size = 24;
  latent.multi_latent_attention = true;
  latent.q_lora_rank = 20;
  latent.kv_lora_rank = 12;
  latent.qk_head_dim = 4;
  latent.qk_pos_emb_head_dim = 2;
  latent.v_head_dim = 3;
  latent.position_embedding = models::PositionEmbedding::rope;
  hybrid.num_layers.reset();
  hybrid.hybrid_layer_pattern = "M*";
  hybrid.mamba_num_heads = 8;
  hybrid.mamba_head_dim = 4;
  hybrid.mamba_num_groups = 2;
  hybrid.mamba_state_dim = 6;
  std::set<std::string> found;
  for (const models::ModelFlags& f : {flags, experts, latent, hybrid})
    for (const auto& [weight, formats] :
         models::module_precision(models::model_from_flags(f, 32))) {
      const std::string name = models::megatron_module(weight, {.layers = 2});
      EXPECT_NE(name, "") << weight;
      EXPECT_FALSE(formats) << weight;
      found.insert(name.substr(name.rfind("layers.") + 9));
    }
  const models::LayerCounts encoder{.layers = 4, .encoder = 2};
  EXPECT_EQ(models::megatron_module("layers.1.mlp.up.weight", encoder),
            "encoder.layers.1.mlp.linear_fc1");
  EXPECT_EQ(models::megatron_module("layers.3.mlp.up.weight", encoder),
            "decoder.layers.1.mlp.linear_fc1");
  for (const char* name : {"self_attention.linear_qkv", "self_attention.linear_q_up_proj",
                           "mlp.linear_fc1", "mlp.experts.linear_fc2",
                           "mlp.shared_experts.linear_fc1", "mlp.fc1_latent_proj", "mixer.in_proj"})
    EXPECT_TRUE(found.contains(name)) << name;
}

}  // namespace
}  // namespace megatron::settings::precision_file_test
