#include "settings/precision_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <ranges>

#include "base/error.h"
#include "base/files.h"
#include "settings/yaml_document.h"

namespace megatron::settings {
namespace {

constexpr size_t kLargestFile = 1 << 20;
constexpr std::string_view kConfigType = "TEQuantizationParams";

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  std::vector<PrecisionRule> read(const YAML::Node& root) const {
    Map file = map_of(root, "the file", {"configs", "matchers"});
    std::map<std::string, PrecisionRule> configs;
    for (const auto& [name, config] :
         map_of(required(file, "configs", root, "the file"), "configs"))
      configs.emplace(name, config_of(name, config));
    std::vector<PrecisionRule> rules;
    for (const auto& [name, matcher] :
         map_of(required(file, "matchers", root, "the file"), "matchers"))
      add_rule(name, matcher, configs, rules);
    MG_CHECK(!rules.empty(),
             "{}: no matcher is enabled, so that the file changes nothing: add enabled: true",
             where(file.find("matchers")->second));
    return rules;
  }

 private:
  // Values by key, in the order of the file.
  class Map : public std::vector<std::pair<std::string, YAML::Node>> {
   public:
    const_iterator find(std::string_view key) const {
      return std::ranges::find(*this, key,
                               [](const auto& entry) -> const auto& { return entry.first; });
    }
  };

  std::string where(const YAML::Node& node) const {
    return fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  // keys: those that are known; empty: any.
  Map map_of(const YAML::Node& node, std::string_view what,
             const std::vector<std::string_view>& keys = {}) const {
    MG_CHECK(node.IsMap(), "{}: {} must be a map{}", where(node), what,
             keys.empty() ? " of names" : fmt::format(" with the keys {}", fmt::join(keys, ", ")));
    Map map;
    for (const auto& entry : node) {
      MG_CHECK(entry.first.IsScalar(), "{}: a key of {} must be a name", where(entry.first), what);
      const std::string& key = entry.first.Scalar();
      MG_CHECK(keys.empty() || std::ranges::find(keys, key) != keys.end(),
               "{}: {} has the unknown key '{}'; the keys are {}", where(entry.first), what, key,
               fmt::join(keys, ", "));
      MG_CHECK(map.find(key) == map.end(), "{}: {} has '{}' twice", where(entry.first), what, key);
      map.emplace_back(key, entry.second);
    }
    return map;
  }

  const YAML::Node& required(const Map& map, std::string_view key, const YAML::Node& owner,
                             std::string_view what) const {
    const auto found = map.find(key);
    MG_CHECK(found != map.end(), "{}: {} has no {}", where(owner), what, key);
    return found->second;
  }

  // The value of a key; nothing if it is absent or null.
  std::optional<std::string> text(const Map& map, std::string_view key) const {
    const auto found = map.find(key);
    if (found == map.end() || found->second.IsNull()) return {};
    MG_CHECK(found->second.IsScalar(), "{}: {} must be a text", where(found->second), key);
    return found->second.Scalar();
  }

  bool truth(const Map& map, std::string_view key, bool otherwise) const {
    const auto found = map.find(key);
    if (found == map.end()) return otherwise;
    bool value = otherwise;
    MG_CHECK(found->second.IsScalar() && YAML::convert<bool>::decode(found->second, value),
             "{}: {} must be true or false", where(found->second), key);
    return value;
  }

  template <class T>
  T choice(const Map& map, std::string_view key, const std::string& value,
           const std::vector<std::pair<std::string_view, T>>& choices,
           std::string_view hint = "") const {
    std::vector<std::string_view> names;
    for (const auto& [name, meaning] : choices) {
      if (name == value) return meaning;
      names.push_back(name);
    }
    fail("{}: {} is '{}', which is not supported here; it may be {}{}",
         where(map.find(key)->second), key, value, fmt::join(names, ", "), hint);
  }

  PrecisionRule recipe_of(const YAML::Node& node, const std::string& what) const {
    const Map map = map_of(node, what,
                           {"fp8_quantization_recipe", "fp4_quantization_recipe", "fp8_format",
                            "override_quantized_autocast", "override_nonquantized_autocast",
                            "custom_recipe_factory", "tp_only_amax_red", "fp8_param", "fp4_param"});
    PrecisionRule rule{.of_quantized = truth(map, "override_quantized_autocast", true),
                       .of_others = truth(map, "override_nonquantized_autocast", false)};
    // How weights are stored and sent, and which ranks' scales are one, is the same for all.
    for (const char* key : {"tp_only_amax_red", "fp8_param", "fp4_param"})
      static_cast<void>(truth(map, key, false));
    const auto factory = text(map, "custom_recipe_factory");
    MG_CHECK(!factory, "{}: custom_recipe_factory names code in Python, '{}'; leave it out",
             where(map.find("custom_recipe_factory")->second), *factory);
    const std::string format = text(map, "fp8_format").value_or("e4m3");
    const LowFormat gradient = choice<LowFormat>(
        map, "fp8_format", format, {{"e4m3", LowFormat::e4m3}, {"hybrid", LowFormat::e5m2}});
    const auto fp8 = text(map, "fp8_quantization_recipe"),
               fp4 = text(map, "fp4_quantization_recipe");
    MG_CHECK(!fp8 || !fp4,
             "{}: {} has fp8_quantization_recipe and fp4_quantization_recipe; give one of them",
             where(node), what);
    using enum LowPrecisionRecipe;
    if (fp8)
      rule.formats = {
          .recipe = choice<LowPrecisionRecipe>(
              map, "fp8_quantization_recipe", *fp8,
              {{name(tensorwise), tensorwise}, {name(blockwise), blockwise}, {name(mxfp8), mxfp8}},
              *fp8 == name(delayed) ? "; delayed is for the whole model (--fp8-recipe delayed)"
                                    : ""),
          .gradient = gradient};
    if (fp4)
      rule.formats = {.recipe = choice<LowPrecisionRecipe>(map, "fp4_quantization_recipe", *fp4,
                                                           {{name(nvfp4), nvfp4}}),
                      .forward = LowFormat::e2m1,
                      .gradient = LowFormat::e2m1};
    return rule;
  }

  PrecisionRule config_of(const std::string& name, const YAML::Node& node) const {
    const std::string what = fmt::format("config '{}'", name);
    const Map map = map_of(
        node, what, {"transformer_engine_config_type", "training_recipe", "evaluation_recipe"});
    const YAML::Node& type = required(map, "transformer_engine_config_type", node, what);
    MG_CHECK(type.IsScalar() && type.Scalar() == kConfigType,
             "{}: transformer_engine_config_type is '{}'; it must be {}", where(type),
             type.IsScalar() ? type.Scalar() : "", kConfigType);
    PrecisionRule rule =
        recipe_of(required(map, "training_recipe", node, what), what + "'s training_recipe");
    const auto evaluation = map.find("evaluation_recipe");
    if (evaluation == map.end()) return rule;
    MG_CHECK(recipe_of(evaluation->second, what + "'s evaluation_recipe") == rule,
             "{}: {} has an evaluation_recipe that differs from its training_recipe: evaluation in "
             "a run is quantized as training is, and megatron eval computes in bf16; leave it out",
             where(evaluation->second), what);
    return rule;
  }

  void add_rule(const std::string& name, const YAML::Node& node,
                const std::map<std::string, PrecisionRule>& configs,
                std::vector<PrecisionRule>& rules) const {
    const std::string what = fmt::format("matcher '{}'", name);
    const Map map = map_of(node, what, {"type", "pattern", "config", "enabled"});
    for (const char* key : {"type", "pattern", "config"})
      MG_CHECK(text(map, key), "{}: {} has no {}", where(node), what, key);
    static_cast<void>(choice<bool>(map, "type", *text(map, "type"), {{"glob", true}}));
    const std::string config = *text(map, "config");
    const auto found = configs.find(config);
    MG_CHECK(found != configs.end(),
             "{}: {} has the config '{}', which the file does not have; its configs are {}",
             where(map.find("config")->second), what, config,
             fmt::join(std::views::keys(configs), ", "));
    if (!truth(map, "enabled", false)) return;
    rules.push_back(found->second);
    rules.back().pattern = *text(map, "pattern");
    rules.back().where = where(map.find("pattern")->second);
  }

  const std::string& path_;
};

}  // namespace

std::vector<PrecisionRule> read_precision_rules(const std::string& path) {
  MG_CHECK(std::filesystem::is_regular_file(path),
           "--te-precision-config-file is {}, and there is no such file", path);
  return parse_precision_rules(read_file(path, kLargestFile), path);
}

std::vector<PrecisionRule> parse_precision_rules(std::string content, const std::string& path) {
  const auto root = load_yaml(std::move(content), path);
  MG_CHECK(root, "{} is empty; it must have configs and matchers (docs/low_precision.md)", path);
  try {
    return Reader(path).read(*root);
  } catch (const YAML::Exception& e) {
    fail("{}:{}: not valid YAML: {}", path, e.mark.line + 1, e.msg);
  }
}

}  // namespace megatron::settings
