// A config.json has the same meaning as in transformers' configuration class of its type.
// config_defaults.json, written by tools/config_defaults.py, has each class's defaults and its
// interpretation of keys in several forms.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "models/families/family.h"

namespace megatron::models {
namespace {

Json table() {
  return Json::read(std::string(MEGATRON_TEST_SOURCES) + "/unit/models/config_defaults.json");
}

// Returns nothing if the configuration is refused. Multi-token prediction is left out, as in
// transformers; a config.json that does not count its layers has none here.
std::optional<DecoderValue> model_of(const std::string& type, Json config) {
  config.set("model_type", type);
  try {
    DecoderValue value = read_config(family_named(type), config);
    value.prediction = {};
    return value;
  } catch (const Error&) {
    return {};
  }
}

Json without(Json config, const std::string& key) {
  std::erase_if(config.as_object(), [&](const Json::Member& m) { return m.first == key; });
  return config;
}

Json laid_over(Json config, const Json& over) {
  for (const auto& [key, value] : over.as_object())
    config = value.is_null() && key != "sliding_window" ? without(config, key) : config;
  for (const auto& [key, value] : over.as_object()) config.set(key, value);
  return config;
}

template <class Check>
void for_each_type(const Check& check) {
  const Json all = table();
  EXPECT_EQ(all["types"].as_object().size(), 24U);
  for (const auto& [type, entry] : all["types"].as_object()) check(type, entry);
}

TEST(ConfigDefaults, AnAbsentKeyIsTheDefaultOfItsClass) {
  for_each_type([](const std::string& type, const Json& entry) {
    EXPECT_TRUE(model_of(type, entry["small"]).has_value()) << type;
    for (const auto& [key, value] : entry["defaults"].as_object()) {
      const Json absent = without(entry["small"], key);
      Json stated = absent;
      stated.set(key, value);
      EXPECT_TRUE(model_of(type, absent) == model_of(type, stated)) << type << " " << key;
    }
  });
}

// Keys that do not change a model: ids, generation, heads, the cache, and the number of parts of a
// product. GPT-2 has one dropout here, resid_pdrop's. transformers' DeepSeek-V2 does not use
// norm_topk_prob.
constexpr std::string_view kOfNoModel[] = {
    "use_cache",          "bos_token_id",           "eos_token_id",          "pad_token_id",
    "pretraining_tp",     "classifier_dropout",     "summary_type",          "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "embd_pdrop",
    "norm_topk_prob"};

bool is_of_no_model(const std::string& type, const std::string& key) {
  return std::ranges::find(kOfNoModel, key) != std::end(kOfNoModel) &&
         (key != "embd_pdrop" || type == "gpt2") &&
         (key != "norm_topk_prob" || type == "deepseek_v2");
}

TEST(ConfigDefaults, EveryKeyOfAClassIsReadOrKnownNotToMatter) {
  const Json values = Json::parse(R"([true, false, 0, 1, 2, 4, 64, 0.25, "x", [1]])");
  for_each_type([&](const std::string& type, const Json& entry) {
    for (const auto& [key, unused] : entry["defaults"].as_object()) {
      const auto matters = [&](const Json& form) {
        const Json config = laid_over(entry["small"], form["over"]);
        const std::optional<DecoderValue> plain = model_of(type, without(config, key));
        return std::ranges::any_of(values.as_array(), [&](const Json& value) {
          Json changed = config;
          changed.set(key, value);
          return !(model_of(type, changed) == plain);
        });
      };
      const Json::Array& forms = entry["forms"].as_array();
      EXPECT_EQ(std::ranges::any_of(forms, matters), !is_of_no_model(type, key))
          << type << " " << key;
    }
  });
}

TEST(ConfigDefaults, FormsMeanWhatTheClassMakesOfThem) {
  for_each_type([](const std::string& type, const Json& entry) {
    const Json& plain = entry["forms"].as_array().at(0)["is"];
    int held = 0;
    for (const Json& form : entry["forms"].as_array()) {
      const std::string text = type + " " + form["over"].dump();
      const std::optional<DecoderValue> given =
          model_of(type, laid_over(entry["small"], form["over"]));
      held += given.has_value() ? 1 : 0;
      if (form["is"].is_null()) {
        EXPECT_FALSE(given.has_value()) << text;
        continue;
      }
      const Json whole = laid_over(laid_over(entry["small"], plain), form["is"]);
      const std::optional<DecoderValue> said = model_of(type, whole);
      EXPECT_TRUE(given == said) << text;
      EXPECT_EQ(given.has_value(), said.has_value()) << text;
    }
    EXPECT_GT(2 * held, std::ssize(entry["forms"].as_array())) << type;
  });
}

}  // namespace
}  // namespace megatron::models
