// The flags of adapters, and the configuration that follows from them.
#include "settings/adapter_settings.h"

#include <gtest/gtest.h>

#include <cmath>

#include "text.h"

namespace megatron::settings {
namespace {

using megatron::testing::error_of;
using megatron::testing::expect_contains;

struct GivenFlag {
  std::string name;
  std::vector<std::string> values;
};

AdapterSettings adapter_flags(const std::vector<GivenFlag>& given) {
  AdapterSettings settings;
  Fields fields;
  settings.fields(fields);
  for (const auto& [name, values] : given) fields.find(name)->assign(values);
  fields.check();
  return settings;
}

models::LoraConfig config_of(std::vector<GivenFlag> given) {
  given.insert(given.begin(), {"lora-rank", {"8"}});
  return adapter_flags(given).config().value();
}

TEST(AdapterSettings, NoAdapterByDefault) {
  EXPECT_FALSE(AdapterSettings().config());
  EXPECT_FALSE(adapter_flags({{"lora-rank", {"0"}}}).any());
}

TEST(AdapterSettings, TheRankAloneAdaptsEveryLinearModule) {
  const models::LoraConfig c = config_of({});
  EXPECT_EQ(models::adapter_of(c, "model.layers.0.mlp.up_proj", models::ModuleKind::linear),
            (models::ModuleAdapter{.rank = 8, .alpha = 8, .scale = 1}));
  EXPECT_FALSE(models::adapter_of(c, "lm_head", models::ModuleKind::output));
  EXPECT_EQ(c.b_rate, 1);
}

TEST(AdapterSettings, FlagsMakeTheConfiguration) {
  const models::LoraConfig c = config_of({{"lora-alpha", {"16"}},
                                          {"lora-target", {"q_proj", "self_attn.v_proj"}},
                                          {"lora-exclude", {".*\\.5\\..*"}},
                                          {"lora-layers", {"1", "4-6"}},
                                          {"lora-rank-pattern", {"layers\\.4\\..*=2", "v_proj=4"}},
                                          {"lora-alpha-pattern", {"(?=v)v_proj=0.5"}},
                                          {"lora-modules-to-save", {"lm_head"}},
                                          {"lora-token-indices", {"7", "3-5"}},
                                          {"lora-bias", {"lora_only"}},
                                          {"use-rslora", {}},
                                          {"use-dora", {}}});
  const Json expected = Json::parse(R"({
    "r": 8, "lora_alpha": 16, "bias": "lora_only", "use_rslora": true,
    "use_dora": true, "target_modules": ["q_proj", "self_attn.v_proj"],
    "exclude_modules": ".*\\.5\\..*", "layers_to_transform": [1, 4, 5, 6],
    "rank_pattern": {"layers\\.4\\..*": 2, "v_proj": 4}, "alpha_pattern": {"(?=v)v_proj": 0.5},
    "modules_to_save": ["lm_head"], "trainable_token_indices": [7, 3, 4, 5],
    "peft_type": "LORA", "task_type": "CAUSAL_LM"})");
  const Json written = models::to_json(c);
  for (const auto& [key, value] : expected.as_object()) EXPECT_EQ(written[key], value) << key;
  EXPECT_EQ(models::adapter_of(c, "model.layers.4.self_attn.v_proj", models::ModuleKind::linear),
            (models::ModuleAdapter{.rank = 2, .alpha = 0.5, .scale = 0.5 / std::sqrt(2.0)}));
}

TEST(AdapterSettings, ParametersOfExpertsAreTargetsBesideModules) {
  const models::LoraConfig c = config_of({{"lora-target-parameters", {"experts.gate_up_proj"}}});
  EXPECT_TRUE(c.all_linear);
  EXPECT_EQ(models::adapter_of_parameter(c, "model.layers.0.mlp.experts.gate_up_proj"),
            (models::ModuleAdapter{.rank = 8, .alpha = 8, .scale = 1}));
  EXPECT_FALSE(models::adapter_of_parameter(c, "model.layers.0.mlp.experts.down_proj"));
}

TEST(AdapterSettings, APatternOrAllLinearStandsAlone) {
  EXPECT_EQ(config_of({{"lora-target", {".*_proj"}}}).targets.pattern->text(), ".*_proj");
  EXPECT_EQ(config_of({{"lora-target", {"model.layers.0.mlp.up_proj"}}}).targets.names.size(), 1u);
  EXPECT_TRUE(config_of({{"lora-target", {"all-linear"}}}).all_linear);
}

TEST(AdapterSettings, StartFromADirectory) {
  const std::string patterns = std::string(MEGATRON_GOLDEN) + "/adapters/patterns";
  const models::LoraConfig c = *adapter_flags({{"adapter", {patterns}}}).config();
  EXPECT_EQ(c.rank_pattern.size(), 3u);
  EXPECT_EQ(adapter_flags({{"adapter", {patterns}}, {"lora-plus-ratio", {"4"}}}).config()->b_rate,
            4);
  for (const GivenFlag& flag : {GivenFlag{"lora-rank", {"4"}}, GivenFlag{"use-dora", {}},
                                GivenFlag{"lora-target", {"q_proj"}}})
    expect_contains(error_of([&] { adapter_flags({{"adapter", {patterns}}, flag}).check(); }),
                    {"--" + flag.name, "--adapter " + patterns});
  expect_contains(error_of([&] { adapter_flags({{"adapter", {patterns + "x"}}}).config(); }),
                  {patterns + "x/adapter_config.json"});
  expect_contains(error_of([&] { adapter_flags({{"adapter", {""}}}).check(); }), {"--adapter"});
}

TEST(AdapterSettings, ErrorsNameFlagAndValue) {
  const struct {
    GivenFlag flag;
    std::vector<std::string_view> parts;
  } kBad[] = {
      {{"lora-rank", {"-1"}}, {"-1", "1048576"}},
      {{"lora-alpha", {"0"}}, {"--lora-alpha is 0"}},
      {{"lora-plus-ratio", {"0"}}, {"--lora-plus-ratio is 0"}},
      {{"lora-target", {"q_proj", ".*k"}}, {"--lora-target", "'.*k'", "(?:a|b)"}},
      {{"lora-target", {"q_proj", "all-linear"}}, {"--lora-target", "all-linear"}},
      {{"lora-target", {"(q"}}, {"--lora-target", "(q"}},
      {{"lora-target", {""}}, {"--lora-target", "empty"}},
      {{"lora-exclude", {"a", "b*"}}, {"--lora-exclude", "'b*'"}},
      {{"lora-layers", {"1"}}, {"--lora-layers is 1", "all-linear"}},
      {{"lora-layers", {"3-1"}}, {"--lora-layers", "'3-1'", "8-11"}},
      {{"lora-layers", {"-1"}}, {"--lora-layers", "'-1'"}},
      {{"lora-layers", {"1", "0-2"}}, {"--lora-layers has 1 twice"}},
      {{"lora-layers", {"0-9223372036854775807"}}, {"--lora-layers"}},
      {{"lora-rank-pattern", {"q_proj"}}, {"--lora-rank-pattern", "'q_proj'", "q_proj=16"}},
      {{"lora-rank-pattern", {"q_proj=0"}}, {"--lora-rank-pattern", "'q_proj=0'", "a rank"}},
      {{"lora-rank-pattern", {"q_proj=1.5"}}, {"--lora-rank-pattern", "'q_proj=1.5'"}},
      {{"lora-rank-pattern", {"(=2"}}, {"--lora-rank-pattern", "'('"}},
      {{"lora-alpha-pattern", {"q_proj=nan"}}, {"--lora-alpha-pattern", "'q_proj=nan'"}},
      {{"lora-alpha-pattern", {"=2"}}, {"--lora-alpha-pattern", "'=2'", "an alpha"}},
      {{"lora-modules-to-save", {""}}, {"--lora-modules-to-save", "empty"}},
      {{"lora-target-parameters", {""}}, {"--lora-target-parameters", "empty"}},
  };
  for (const auto& [flag, parts] : kBad) {
    const std::string error = error_of([&] { config_of({flag}); });
    for (const auto part : parts) EXPECT_TRUE(megatron::testing::has(error, part)) << error;
    EXPECT_FALSE(error.empty()) << flag.name;
  }
}

TEST(AdapterSettings, FlagsWithoutAnAdapterDoNothing) {
  AdapterSettings settings;
  Fields fields;
  settings.fields(fields);
  fields.find("lora-alpha")->assign({"4"});
  EXPECT_EQ(idle_notes(fields),
            (std::vector<std::string>{"--lora-alpha 4 has no effect: neither --lora-rank nor "
                                      "--adapter is given"}));
  fields.find("lora-rank")->assign({"4"});
  EXPECT_TRUE(idle_notes(fields).empty());
  for (const Field& field : fields.all()) EXPECT_EQ(field.group, "adapters") << field.name;
}

}  // namespace
}  // namespace megatron::settings
