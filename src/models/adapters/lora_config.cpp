#include "models/adapters/lora_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace megatron::models {
namespace {

constexpr int64_t kMaxRank = int64_t{1} << 20;
constexpr std::string_view kAllLinear = "all-linear";

// Keys that turn on other methods: supported only where they are null, false or empty.
struct OtherMethod {
  std::string_view key, name;
};
constexpr std::array kOtherMethods = {
    OtherMethod{"alora_invocation_tokens", "activated LoRA"},
    OtherMethod{"arrow_config", "Arrow routing"},
    OtherMethod{"ensure_weight_tying", "adapters of tied weights that are tied themselves"},
    OtherMethod{"kasa_config", "KaSA"},
    OtherMethod{"layer_replication", "repeated layers"},
    OtherMethod{"monteclora_config", "MonteCLoRA"},
    OtherMethod{"use_bdlora", "block-diagonal LoRA"},
    OtherMethod{"use_qalora", "QALoRA"},
    OtherMethod{"velora_config", "VeLoRA"},
};
bool is_off(const Json& value) {
  if (value.is_object()) return value.as_object().empty();
  if (value.is_array()) return value.as_array().empty();
  return value.is_null() || value == Json(false);
}

// Reads values by their keys. Every error names the file, the key and the value.
class AdapterFile {
 public:
  AdapterFile(const Json& json, const std::string& path) : json_(json), path_(path) {
    MG_CHECK(json.is_object(), "{} has no object of keys, but {}", path, json.dump());
  }

  // Null pointer: absent or null.
  const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  const Json& required(std::string_view key) const {
    const Json* value = find(key);
    MG_CHECK(value != nullptr, "{} has no '{}'", path_, key);
    return *value;
  }
  [[noreturn]] void refuse(std::string_view key, const Json& value, std::string_view why) const {
    fail("{} has {} = {}; {}", path_, key, value.dump(), why);
  }
  void require(bool holds, std::string_view key, const Json& value, std::string_view why) const {
    if (!holds) refuse(key, value, why);
  }

  int64_t integer(std::string_view key, const Json& value) const {
    require(value.is_integer(), key, value, "it must be an integer");
    return value.as_integer();
  }
  double number(std::string_view key, const Json& value) const {
    require(value.is_number(), key, value, "it must be a number");
    return value.as_number();
  }
  bool boolean(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return false;
    require(value->is_bool(), key, *value, "it must be true or false");
    return value->as_bool();
  }
  std::string text(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    require(value->is_string(), key, *value, "it must be text");
    return value->as_string();
  }
  std::vector<std::string> names(std::string_view key) const {
    std::vector<std::string> names;
    const Json* value = find(key);
    if (value == nullptr) return names;
    require(value->is_array(), key, *value, "it must be a list of names");
    for (const Json& name : value->as_array()) {
      require(name.is_string() && !name.as_string().empty(), key, *value,
              "each entry must be a name");
      names.push_back(name.as_string());
    }
    return names;
  }
  std::vector<int64_t> integers(std::string_view key, const Json& value) const {
    require(value.is_array(), key, value, "it must be a list of integers");
    std::vector<int64_t> numbers;
    for (const Json& number : value.as_array()) numbers.push_back(integer(key, number));
    return numbers;
  }
  NamePattern pattern(std::string_view key, const std::string& text, NamePattern::Use use) const {
    try {
      return NamePattern(text, use);
    } catch (const Error& error) {
      fail("{}, {}: {}", path_, key, error.what());
    }
  }
  // A list of names, or one text that is a pattern.
  ModuleNames modules(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_string()) return {.names = names(key)};
    require(!value->as_string().empty(), key, *value, "it must not be empty");
    return {.pattern = pattern(key, value->as_string(), NamePattern::Use::whole)};
  }
  template <class T, class Read>
  std::vector<std::pair<NamePattern, T>> patterns(std::string_view key, Read read) const {
    std::vector<std::pair<NamePattern, T>> patterns;
    const Json* value = find(key);
    if (value == nullptr) return patterns;
    require(value->is_object(), key, *value, "it must be an object of patterns and numbers");
    for (const auto& [text, number] : value->as_object())
      patterns.emplace_back(pattern(key, text, NamePattern::Use::ending), read(number));
    return patterns;
  }

 private:
  const Json& json_;
  const std::string& path_;
};

void refuse_other_methods(const AdapterFile& file) {
  const Json& type = file.required("peft_type");
  file.require(type == Json("LORA"), "peft_type", type, "supported: \"LORA\"");
  for (const auto& [key, name] : kOtherMethods) {
    const Json* value = file.find(key);
    if (value == nullptr || is_off(*value)) continue;
    file.refuse(key, *value,
                fmt::format("{} is not supported; LoRA, rsLoRA (use_rslora) and DoRA (use_dora) "
                            "are",
                            name));
  }
}

LoraInit read_init(const AdapterFile& file) {
  constexpr std::string_view kKey = "init_lora_weights";
  const Json* value = file.find(kKey);
  if (value == nullptr || *value == Json(true)) return LoraInit::standard;
  if (*value == Json(false)) return LoraInit::random;
  const std::string name = value->is_string() ? value->as_string() : "";
  if (name == "gaussian") return LoraInit::gaussian;
  // The base stays as it is, and what is read does not depend on how it began.
  if (name == "eva" || name == "orthogonal") return LoraInit::standard;
  file.refuse(kKey, *value,
              "supported: true, false, \"gaussian\", \"eva\", \"orthogonal\". Other ways to begin "
              "change the base model, so that the adapter is wrong on the original one: let PEFT "
              "convert it (save_pretrained with path_initial_model_for_weight_conversion)");
}

LoraBias read_bias(const AdapterFile& file) {
  const std::string name = file.text("bias");
  if (name.empty() || name == "none") return LoraBias::none;
  if (name == "all") return LoraBias::all;
  if (name == "lora_only") return LoraBias::lora_only;
  file.refuse("bias", name, "supported: \"none\", \"all\", \"lora_only\"");
}

bool is_all_linear(const Json* targets) {
  return targets != nullptr && targets->is_string() &&
         std::ranges::equal(targets->as_string(), kAllLinear, [](char a, char b) {
           return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b;
         });
}

void read_layers(const AdapterFile& file, LoraConfig& config) {
  if (const Json* layers = file.find("layers_to_transform"))
    config.layers_to_transform = layers->is_integer()
                                     ? std::vector<int64_t>{layers->as_integer()}
                                     : file.integers("layers_to_transform", *layers);
  const Json* pattern = file.find("layers_pattern");
  if (pattern == nullptr) return;
  const std::vector<std::string> names =
      pattern->is_string() ? std::vector{pattern->as_string()} : file.names("layers_pattern");
  for (const std::string& name : names)
    if (!name.empty())
      config.layers_pattern.push_back(
          file.pattern("layers_pattern", name, NamePattern::Use::layers));
}

void read_token_indices(const AdapterFile& file, LoraConfig& config) {
  constexpr std::string_view kKey = "trainable_token_indices";
  const Json* value = file.find(kKey);
  if (value == nullptr) return;
  if (!value->is_object()) {
    config.trainable_token_indices.emplace_back("", file.integers(kKey, *value));
    return;
  }
  for (const auto& [name, ids] : value->as_object()) {
    file.require(!name.empty(), kKey, *value, "each key must be an embedding's name");
    config.trainable_token_indices.emplace_back(name, file.integers(kKey, ids));
  }
}

Json strings_or_null(const std::vector<std::string>& names) {
  return names.empty() ? Json() : Json(Json::Array(names.begin(), names.end()));
}

Json integer_list(const std::vector<int64_t>& numbers) {
  return Json::Array(numbers.begin(), numbers.end());
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

// As Python writes an alpha: an integer has no point.
Json alpha_json(double alpha) {
  constexpr double kExact = 0x1p53;
  return alpha == std::trunc(alpha) && std::abs(alpha) < kExact ? Json(static_cast<int64_t>(alpha))
                                                                : Json(alpha);
}

Json modules_json(const ModuleNames& modules) {
  return modules.pattern ? Json(modules.pattern->text()) : strings_or_null(modules.names);
}

Json targets_json(const LoraConfig& config) {
  if (config.all_linear) return Json(kAllLinear);
  // An empty list: parameters, embeddings or saved modules alone.
  return config.targets.empty() ? Json(Json::Array{}) : modules_json(config.targets);
}

Json layers_pattern_json(const LoraConfig& config) {
  std::vector<std::string> names;
  for (const NamePattern& pattern : config.layers_pattern) names.push_back(pattern.text());
  return strings_or_null(names);
}

template <class T, class Write>
Json patterns_json(const std::vector<std::pair<NamePattern, T>>& patterns, Write write) {
  Json::Object object;
  for (const auto& [pattern, value] : patterns) object.emplace_back(pattern.text(), write(value));
  std::ranges::sort(object, {}, &Json::Member::first);
  return object;
}

Json token_indices_json(const LoraConfig& config) {
  const auto& indices = config.trainable_token_indices;
  if (indices.empty()) return {};
  if (indices.size() == 1 && indices[0].first.empty()) return integer_list(indices[0].second);
  Json::Object object;
  for (const auto& [name, ids] : indices) object.emplace_back(name, integer_list(ids));
  std::ranges::sort(object, {}, &Json::Member::first);
  return object;
}

Json init_json(LoraInit init) {
  if (init == LoraInit::gaussian) return "gaussian";
  return init == LoraInit::standard;
}

Json bias_json(LoraBias bias) {
  if (bias == LoraBias::none) return "none";
  return bias == LoraBias::all ? "all" : "lora_only";
}

// All keys of PEFT 0.21 but those of other methods and those that say nothing (standard_json).
Json::Object own_json(const LoraConfig& c) {
  return {
      {"alpha_pattern", patterns_json(c.alpha_pattern, alpha_json)},
      {"base_model_name_or_path", text_or_null(c.base_model)},
      {"bias", bias_json(c.bias)},
      {"exclude_modules", modules_json(c.excluded)},
      {"fan_in_fan_out", c.fan_in_fan_out},
      {"init_lora_weights", init_json(c.init)},
      {"layers_pattern", layers_pattern_json(c)},
      {"layers_to_transform",
       c.layers_to_transform.empty() ? Json() : integer_list(c.layers_to_transform)},
      {"lora_alpha", alpha_json(c.alpha)},
      {"lora_bias", c.lora_bias},
      {"lora_dropout", c.dropout},
      {"modules_to_save", strings_or_null(c.modules_to_save)},
      {"peft_version", text_or_null(c.peft_version)},
      {"r", c.rank},
      {"rank_pattern", patterns_json(c.rank_pattern, [](int64_t rank) { return Json(rank); })},
      {"target_modules", targets_json(c)},
      {"target_parameters", strings_or_null(c.target_parameters)},
      {"task_type", text_or_null(c.task_type)},
      {"trainable_token_indices", token_indices_json(c)},
      {"use_dora", c.weight_decomposed},
      {"use_rslora", c.rank_stabilized},
  };
}

Json::Object standard_json() {
  Json::Object object = {
      {"auto_mapping", {}},
      {"corda_config", {}},
      {"eva_config", {}},
      {"inference_mode", true},
      {"loftq_config", Json::Object{}},
      {"lora_ga_config", {}},
      {"megatron_config", {}},
      {"megatron_core", "megatron.core"},
      {"peft_type", "LORA"},
      {"qalora_group_size", 16},
      {"revision", {}},
  };
  for (const OtherMethod& method : kOtherMethods) object.emplace_back(method.key, Json());
  for (auto& [key, value] : object)
    if (key == "use_qalora" || key == "ensure_weight_tying") value = false;
  return object;
}

void warn_of_unknown_keys(const Json& json, const std::string& path) {
  const Json known = to_json({});
  for (const auto& [key, value] : json.as_object())
    if (!known.contains(key) && !is_off(value))
      log::warning("{} has {} = {}, an unknown key: it has no effect", path, key, value.dump());
}

LoraConfig read_config(const Json& json, const std::string& path) {
  const AdapterFile file(json, path);
  refuse_other_methods(file);
  const auto rank = [&](const Json& value) { return file.integer("rank_pattern", value); };
  const auto alpha = [&](const Json& value) { return file.number("alpha_pattern", value); };
  LoraConfig config{
      .rank = file.integer("r", file.required("r")),
      .alpha = file.number("lora_alpha", file.required("lora_alpha")),
      .rank_stabilized = file.boolean("use_rslora"),
      .weight_decomposed = file.boolean("use_dora"),
      .lora_bias = file.boolean("lora_bias"),
      .fan_in_fan_out = file.boolean("fan_in_fan_out"),
      .bias = read_bias(file),
      .init = read_init(file),
      .all_linear = is_all_linear(file.find("target_modules")),
      .excluded = file.modules("exclude_modules"),
      .rank_pattern = file.patterns<int64_t>("rank_pattern", rank),
      .alpha_pattern = file.patterns<double>("alpha_pattern", alpha),
      .target_parameters = file.names("target_parameters"),
      .modules_to_save = file.names("modules_to_save"),
      .base_model = file.text("base_model_name_or_path"),
      .task_type = file.text("task_type"),
      .peft_version = file.text("peft_version"),
      .file = json,
  };
  if (const Json* dropout = file.find("lora_dropout"))
    config.dropout = file.number("lora_dropout", *dropout);
  if (!config.all_linear) config.targets = file.modules("target_modules");
  MG_CHECK(file.find("target_modules") != nullptr || !config.target_parameters.empty(),
           "{} has neither target_modules nor target_parameters", path);
  read_layers(file, config);
  read_token_indices(file, config);
  return config;
}

void check_numbers(const LoraConfig& c, const std::string& path) {
  const auto check_rank = [&](const std::string& key, int64_t rank) {
    MG_CHECK(rank >= 1 && rank <= kMaxRank, "{} has {} = {}; a rank must lie in [1, {}]", path, key,
             rank, kMaxRank);
  };
  const auto check_alpha = [&](const std::string& key, double alpha) {
    MG_CHECK(alpha > 0 && std::isfinite(alpha), "{} has {} = {}; an alpha must be positive", path,
             key, alpha);
  };
  check_rank("r", c.rank);
  check_alpha("lora_alpha", c.alpha);
  for (const auto& [key, rank] : c.rank_pattern)
    check_rank("rank_pattern '" + key.text() + "'", rank);
  for (const auto& [key, alpha] : c.alpha_pattern)
    check_alpha("alpha_pattern '" + key.text() + "'", alpha);
  MG_CHECK(c.dropout >= 0 && c.dropout < 1, "{} has lora_dropout = {}; it must lie in [0, 1)", path,
           c.dropout);
}

void check_targets(const LoraConfig& c, const std::string& path) {
  const bool by_name = !c.all_linear && !c.targets.pattern;
  MG_CHECK(by_name || c.layers_to_transform.empty(),
           "{} has layers_to_transform, and a pattern or all-linear in target_modules; list the "
           "modules' names, or write the layers in the pattern",
           path);
  MG_CHECK(c.layers_pattern.empty() || !c.layers_to_transform.empty(),
           "{} has layers_pattern without layers_to_transform", path);
  for (const int64_t layer : c.layers_to_transform)
    MG_CHECK(layer >= 0, "{} has layer {} in layers_to_transform; the first is 0", path, layer);
  MG_CHECK(c.all_linear || !c.targets.empty() || !c.target_parameters.empty() ||
               !c.modules_to_save.empty() || !c.trainable_token_indices.empty(),
           "{} names nothing to train: its target_modules is empty", path);
  constexpr std::string_view kTasks[] = {"", "CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"};
  MG_CHECK(std::ranges::find(kTasks, c.task_type) != std::end(kTasks),
           "{} has task_type = \"{}\"; supported: {}", path, c.task_type,
           fmt::join(std::span(kTasks).subspan(1), ", "));
}

// Combinations that PEFT refuses.
void check_combinations(const LoraConfig& c, const std::string& path) {
  MG_CHECK(!c.lora_bias || (!c.weight_decomposed && c.init != LoraInit::gaussian),
           "{} has lora_bias, which excludes use_dora and init_lora_weights \"gaussian\"", path);
  if (c.target_parameters.empty()) return;
  MG_CHECK(c.dropout == 0, "{} has target_parameters, which exclude lora_dropout; it is {}", path,
           c.dropout);
  MG_CHECK(!c.lora_bias && !c.weight_decomposed && !c.fan_in_fan_out,
           "{} has target_parameters, which exclude lora_bias, use_dora and fan_in_fan_out", path);
}

void check_token_indices(const LoraConfig& c, const std::string& path) {
  for (const auto& [embedding, ids] : c.trainable_token_indices) {
    std::vector<int64_t> sorted = ids;
    std::ranges::sort(sorted);
    MG_CHECK(!sorted.empty() && sorted.front() >= 0 &&
                 std::ranges::adjacent_find(sorted) == sorted.end(),
             "{} has trainable_token_indices = {}; list ids of 0 or more, each once", path,
             integer_list(ids).dump());
    const std::string_view name = embedding.empty() ? "embed_tokens" : std::string_view(embedding);
    MG_CHECK(std::ranges::find(c.modules_to_save, name) == c.modules_to_save.end(),
             "{} has '{}' in modules_to_save and rows of it in trainable_token_indices; keep one",
             path, name);
  }
}

}  // namespace

LoraConfig lora_from_json(const Json& json, const std::string& path) {
  LoraConfig config = read_config(json, path);
  check(config, path);
  warn_of_unknown_keys(json, path);
  return config;
}

void check(const LoraConfig& config, const std::string& path) {
  check_numbers(config, path);
  check_targets(config, path);
  check_combinations(config, path);
  check_token_indices(config, path);
}

Json to_json(const LoraConfig& config) {
  Json json = config.file.is_null() ? Json(standard_json()) : config.file;
  Json::Object before;
  if (!config.file.is_null()) before = own_json(read_config(config.file, "adapter_config.json"));
  const Json unchanged(std::move(before));
  for (auto& [key, value] : own_json(config)) {
    const Json* read = unchanged.find(key);
    if (read == nullptr || !(*read == value)) json.set(key, std::move(value));
  }
  std::ranges::sort(json.as_object(), {}, &Json::Member::first);
  return json;
}

}  // namespace megatron::models
