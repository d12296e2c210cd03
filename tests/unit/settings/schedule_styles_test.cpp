// Styles that Megatron-LM's schedule refuses or silently ignores are refused by the flags.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "settings/settings.h"

namespace megatron::settings {
namespace {

TEST(ScheduleStyles, ThatNoScheduleHasAreRefusedByTheFlags) {
  const Json cases = Json::read(std::string(MEGATRON_GOLDEN) + "/lr/lr_wd.json");
  std::set<std::string> refused;
  for (const Json& c : cases.as_array()) {
    for (const auto& [key, flag] : {std::pair{"lr_decay_style", "lr-decay-style"},
                                    {"wd_incr_style", "weight-decay-incr-style"}}) {
      settings::TrainSettings settings;
      Fields fields = settings.fields();
      const std::string style = c[key].as_string();
      try {
        fields.find(flag)->assign({style});
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_TRUE(text.starts_with("--" + std::string(flag) + " is '" + style + "'; it can be "))
            << text;
        refused.insert(c["name"].as_string());
      }
    }
  }
  EXPECT_EQ(refused, (std::set<std::string>{"error_unknown_style", "error_unknown_wd_style"}));
}

}  // namespace
}  // namespace megatron::settings
