// Flags of recompute and offload: their meaning, and the messages of refusals.
#include "settings/recompute_settings.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "settings/offload_settings.h"

namespace megatron::settings {
namespace {

using Granularity = models::RecomputeOptions::Granularity;
using Method = models::RecomputeOptions::Method;

// Settings of "--flag value" pairs; a switch has no value.
template <class Settings>
Settings of(const std::vector<std::pair<std::string, std::vector<std::string>>>& flags) {
  Settings settings;
  Fields fields;
  settings.fields(fields);
  for (const auto& [flag, values] : flags) fields.find(flag)->assign(values);
  return settings;
}
settings::RecomputeSettings recompute(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& flags) {
  return of<settings::RecomputeSettings>(flags);
}

// Returns the text with which check() refuses the settings.
template <class Settings>
std::string refusal(const Settings& s) {
  std::vector<SettingNote> notes;
  try {
    s.check(4, notes);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
void expect_says(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(RecomputeSettings, NothingByDefault) {
  const settings::RecomputeSettings s;
  EXPECT_FALSE(s.any());
  EXPECT_EQ(refusal(s), "");
  EXPECT_EQ(s.options().granularity, Granularity::none);
}

TEST(RecomputeSettings, Full) {
  settings::RecomputeSettings s = recompute({{"recompute-granularity", {"full"}}});
  EXPECT_EQ(refusal(s), "");
  EXPECT_EQ(s.options().granularity, Granularity::full);
  EXPECT_EQ(s.options().method, Method::uniform);
  EXPECT_EQ(s.options().layers, 1);
  EXPECT_FALSE(s.options().distribute);
  s = recompute({{"recompute-granularity", {"full"}},
                 {"recompute-method", {"block"}},
                 {"recompute-num-layers", {"3"}},
                 {"distribute-saved-activations", {}}});
  EXPECT_EQ(refusal(s), "");
  EXPECT_EQ(s.options().method, Method::block);
  EXPECT_EQ(s.options().layers, 3);
  EXPECT_TRUE(s.options().distribute);
}

TEST(RecomputeSettings, Selective) {
  settings::RecomputeSettings s = recompute({{"recompute-activations", {}}});
  std::vector<SettingNote> notes;
  s.check(4, notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].flag, "recompute-granularity");
  EXPECT_EQ(notes[0].value, "selective");
  EXPECT_EQ(s.options().granularity, Granularity::selective);
  EXPECT_EQ(s.options().modules, std::vector<std::string>{"core_attn"});
  s = recompute({{"recompute-granularity", {"selective"}},
                 {"recompute-modules", {"layernorm", "mlp", "mlp_act", "core_attn"}}});
  EXPECT_EQ(refusal(s), "");
  EXPECT_EQ(s.options().modules,
            (std::vector<std::string>{"layernorm", "mlp", "mlp_act", "core_attn"}));
}

TEST(RecomputeSettings, RefusesValuesThatThereAreNot) {
  expect_says(refusal(recompute({{"recompute-granularity", {"half"}}})), "'half'");
  expect_says(
      refusal(recompute({{"recompute-granularity", {"full"}}, {"recompute-method", {"some"}}})),
      "'some'; it must be uniform or block");
  for (const char* layers : {"0", "5"}) {
    expect_says(refusal(recompute(
                    {{"recompute-granularity", {"full"}}, {"recompute-num-layers", {layers}}})),
                std::string("--recompute-num-layers is ") + layers + "; it must lie in [1, 4]");
  }
}

TEST(RecomputeSettings, ModulesOfOtherModelsAreRefusedByName) {
  for (const char* module : {"shared_experts", "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"}) {
    const std::string text = refusal(recompute(
        {{"recompute-granularity", {"selective"}}, {"recompute-modules", {"mlp", module}}}));
    expect_says(text, "'" + std::string(module) + "' belongs to");
    expect_says(text, "core_attn, mla_up_proj, mlp, mlp_act, layernorm, moe and moe_act");
  }
  expect_says(refusal(recompute({{"recompute-granularity", {"selective"}},
                                 {"recompute-modules", {"attention"}}})),
              "there is no module 'attention'");
}

TEST(OffloadSettings, FewerLayersThanThereAre) {
  settings::OffloadSettings s =
      of<settings::OffloadSettings>({{"cpu-offloading-num-layers", {"3"}}});
  EXPECT_EQ(refusal(s), "");
  EXPECT_EQ(s.options().layers, 3);
  s.num_layers = 4;
  expect_says(refusal(s), "--cpu-offloading-num-layers is 4; it must lie in [0, 3]");
  s.num_layers = -1;
  expect_says(refusal(s), "is -1");
}

TEST(OffloadSettings, OptimizerByFraction) {
  EXPECT_EQ(of<settings::OffloadSettings>({}).fraction(), 0);
  EXPECT_EQ(of<settings::OffloadSettings>({{"optimizer-cpu-offload", {}}}).fraction(), 1);
  settings::OffloadSettings s =
      of<settings::OffloadSettings>({{"optimizer-offload-fraction", {"0.25"}}});
  std::vector<SettingNote> notes;
  s.check(4, notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].flag, "optimizer-offload-fraction");
  EXPECT_EQ(s.fraction(), 0);
  s.optimizer = true;
  EXPECT_EQ(s.fraction(), 0.25);
  s.optimizer_fraction = 1.5;
  expect_says(refusal(s), "--optimizer-offload-fraction is 1.5");
}

}  // namespace
}  // namespace megatron::settings
