#include "settings/adapter_settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/text_parts.h"

namespace megatron::settings {
namespace {

using models::NamePattern;

constexpr int64_t kMaxLoraRank = int64_t{1} << 20;
constexpr int64_t kMostNumbers = int64_t{1} << 20;  // in one range
constexpr std::string_view kAllLinearModules = "all-linear";

NamePattern pattern_of(std::string_view flag, const std::string& text, NamePattern::Use use) {
  try {
    return NamePattern(text, use);
  } catch (const Error& error) {
    fail("--{}: {}", flag, error.what());
  }
}

bool is_plain_name(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

void check_not_empty(std::string_view flag, const std::vector<std::string>& values) {
  MG_CHECK(std::ranges::find(values, "") == values.end(),
           "--{} has an empty value; give names of modules, such as q_proj", flag);
}

// Names, or a single pattern.
models::ModuleNames modules_of(std::string_view flag, const std::vector<std::string>& values) {
  check_not_empty(flag, values);
  const auto pattern = std::ranges::find_if_not(values, is_plain_name);
  if (pattern == values.end()) return {.names = values};
  MG_CHECK(values.size() == 1,
           "--{} has the pattern '{}' and other values; a pattern stands alone: join several as "
           "'(?:a|b)'",
           flag, *pattern);
  return {.pattern = pattern_of(flag, *pattern, NamePattern::Use::whole)};
}

// "q_proj=16", split at the last '='. T: of the number.
template <class T>
std::vector<std::pair<NamePattern, T>> patterns_of(std::string_view flag,
                                                   const std::vector<std::string>& values,
                                                   std::string_view number) {
  std::vector<std::pair<NamePattern, T>> patterns;
  for (const std::string& value : values) {
    const size_t at = value.rfind('=');
    const auto parsed = at == value.npos || at == 0
                            ? std::nullopt
                            : parse_number<T>(std::string_view(value).substr(at + 1));
    MG_CHECK(parsed && *parsed > 0 && *parsed <= static_cast<T>(kMaxLoraRank),
             "--{} has '{}'; give a pattern of names and {} in (0, {}], such as q_proj=16", flag,
             value, number, kMaxLoraRank);
    patterns.emplace_back(pattern_of(flag, value.substr(0, at), NamePattern::Use::ending), *parsed);
  }
  return patterns;
}

// "3" and "8-11": numbers and ranges, in the order given.
std::vector<int64_t> numbers_of(std::string_view flag, const std::vector<std::string>& values) {
  std::vector<int64_t> numbers;
  for (const std::string& value : values) {
    std::string_view rest = value;
    const auto first = parse_number<int64_t>(take_until(rest, '-'));
    const auto last = value.find('-') == value.npos ? first : parse_number<int64_t>(rest);
    MG_CHECK(first && last && *first <= *last && *last - *first < kMostNumbers,
             "--{} has '{}'; give numbers such as 3 and ranges such as 8-11", flag, value);
    for (int64_t n = *first; n <= *last; ++n) {
      MG_CHECK(std::ranges::find(numbers, n) == numbers.end(), "--{} has {} twice", flag, n);
      numbers.push_back(n);
    }
  }
  return numbers;
}

// What an adapter in a directory says itself.
constexpr std::string_view kLeftToDirectory[] = {"adapter", "lora-dropout", "lora-plus-ratio"};

}  // namespace

void AdapterSettings::fields(Fields& f) {
  f.begin_group("adapters");
  f.add("lora-rank", &rank,
        "train adapters (LoRA) of this rank instead of the model's parameters; 0: no adapters")
      .within(0, kMaxLoraRank);
  f.add("adapter", &directory,
        "start from the adapter in this directory (adapter_config.json and "
        "adapter_model.safetensors, as PEFT writes them), or from the newest of a --save folder; "
        "it states its ranks and modules");
  f.begin_mode([this] { return any() ? "" : "neither --lora-rank nor --adapter is given"; });
  f.add("lora-alpha", &alpha,
        "the adapters' products are scaled by alpha / rank; default the rank, for a scale of 1");
  f.add("lora-target", &targets,
        "modules with an adapter: names or their ends after a dot (q_proj), one pattern of whole "
        "names (a regular expression of Python), or all-linear: every linear module, experts' too, "
        "but the output head; default all-linear");
  f.add("lora-target-parameters", &target_parameters,
        "expert parameters that get one adapter per expert, by name or end of "
        "name (experts.gate_up_proj experts.down_proj), in addition to --lora-target; for models "
        "whose experts are not modules (gpt-oss, Llama 4)");
  f.add("lora-exclude", &excluded,
        "modules without an adapter among those of --lora-target: names or one pattern");
  f.add("lora-layers", &layers,
        "layers whose modules get an adapter, as numbers and ranges (0 8-11); default all; needs "
        "names in --lora-target");
  f.add("lora-rank-pattern", &rank_pattern,
        "other ranks of some modules, PATTERN=RANK: the first pattern that matches a name or its "
        "end after a dot counts");
  f.add("lora-alpha-pattern", &alpha_pattern,
        "other alphas of some modules, PATTERN=ALPHA, like --lora-rank-pattern");
  f.add("lora-modules-to-save", &modules_to_save,
        "modules that are trained in full and stored with the adapter: every module whose name "
        "ends with one of these (lm_head)");
  f.add("lora-token-indices", &token_indices,
        "tokens whose rows of the token embedding, and of a tied output layer, are trained in full "
        "and stored with the adapter, as ids and ranges (7 32000-32003)");
  f.add_enum(
      "lora-bias", &bias,
      {{"none", models::LoraBias::none},
       {"all", models::LoraBias::all},
       {"lora_only", models::LoraBias::lora_only}},
      "biases of the model that are trained: none, all, or those of modules with an adapter");
  f.add_switch("use-rslora", &rank_stabilized, true,
               "scale by alpha / sqrt(rank) instead of alpha / rank (rsLoRA)");
  f.add_switch("use-dora", &weight_decomposed, true,
               "also train the norm of each row of the adapted weights (DoRA)");
  f.add("lora-dropout", &dropout,
        "dropout of the adapters' inputs in training; default that of --adapter, else 0");
  f.add("lora-plus-ratio", &plus_ratio,
        "learning rate of the adapters' B as a multiple of A's (LoRA+); its paper uses 16");
  f.begin_mode();
}

void AdapterSettings::check() const {
  if (!any()) return;
  MG_CHECK(!directory || !directory->empty(), "--adapter is empty; give the name of a folder");
  MG_CHECK(plus_ratio > 0, "--lora-plus-ratio is {}; it must be positive", plus_ratio);
  MG_CHECK(dropout.value_or(0) >= 0 && dropout.value_or(0) < 1,
           "--lora-dropout is {}; it must be in [0, 1)", dropout.value_or(0));
  if (!directory) return static_cast<void>(from_flags());
  AdapterSettings given = *this, none;
  Fields all, defaults;
  given.fields(all);
  none.fields(defaults);
  for (const auto& [name, value] : changed(all, defaults))
    MG_CHECK(std::ranges::find(kLeftToDirectory, name) != std::end(kLeftToDirectory),
             "--{} is {}, but the adapter in --adapter {} states its own; give one of the two",
             name, value, *directory);
}

models::LoraConfig AdapterSettings::from_flags() const {
  MG_CHECK(!alpha || *alpha > 0, "--lora-alpha is {}; it must be positive", alpha.value_or(0));
  models::LoraConfig config{.rank = rank,
                            .alpha = alpha.value_or(static_cast<double>(rank)),
                            .dropout = dropout.value_or(0),
                            .rank_stabilized = rank_stabilized,
                            .weight_decomposed = weight_decomposed,
                            .bias = bias};
  const auto all = std::ranges::find(targets, kAllLinearModules);
  config.all_linear = targets.empty() || all != targets.end();
  MG_CHECK(all == targets.end() || targets.size() == 1,
           "--lora-target has all-linear and other values; give all-linear alone, or leave it out");
  if (!config.all_linear) config.targets = modules_of("lora-target", targets);
  check_not_empty("lora-target-parameters", target_parameters);
  config.target_parameters = target_parameters;
  config.excluded = modules_of("lora-exclude", excluded);
  config.layers_to_transform = numbers_of("lora-layers", layers);
  MG_CHECK(layers.empty() || !config.targets.names.empty(),
           "--lora-layers is {}, but --lora-target is {}; give the names of modules, or write the "
           "layers in the pattern",
           layers[0], config.all_linear ? "all-linear" : "a pattern");
  config.rank_pattern = patterns_of<int64_t>("lora-rank-pattern", rank_pattern, "a rank");
  config.alpha_pattern = patterns_of<double>("lora-alpha-pattern", alpha_pattern, "an alpha");
  check_not_empty("lora-modules-to-save", modules_to_save);
  config.modules_to_save = modules_to_save;
  if (!token_indices.empty())
    config.trainable_token_indices = {{"", numbers_of("lora-token-indices", token_indices)}};
  models::check(config, "the adapter of the --lora flags");
  return config;
}

models::LoraConfig AdapterSettings::from_directory() const {
  const std::string path = *directory + "/adapter_config.json";
  models::LoraConfig config = models::lora_from_json(Json::read(path), path);
  if (dropout) config.dropout = *dropout;
  models::check(config, "the adapter of --adapter and --lora-dropout");
  return config;
}

std::optional<models::LoraConfig> AdapterSettings::config() const {
  check();
  std::optional<models::LoraConfig> config;
  if (directory) config = from_directory();
  else if (rank > 0) config = from_flags();
  if (config) config->b_rate = plus_ratio;
  return config;
}

}  // namespace megatron::settings
