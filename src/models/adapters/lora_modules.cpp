// Which modules an adapter's configuration adapts or saves.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text_parts.h"
#include "models/adapters/lora_config.h"

namespace megatron::models {
namespace {

bool is_or_ends_in(std::string_view module, std::string_view name) {
  return module == name || (module.size() > name.size() && module.ends_with(name) &&
                            module[module.size() - name.size() - 1] == '.');
}

bool any_ends_module(const std::vector<std::string>& names, std::string_view module) {
  return std::ranges::any_of(
      names, [module](const std::string& name) { return is_or_ends_in(module, name); });
}

// Calls `test` for the module and every module that it is part of.
template <class Test>
bool any_enclosing(std::string_view module, Test test) {
  for (size_t end = module.size();; end = module.rfind('.', end - 1)) {
    if (end == module.npos) return false;
    if (test(module.substr(0, end))) return true;
    if (end == 0) return false;
  }
}

// The first number between two dots that at least two names precede: a layer's, not an expert's.
std::optional<int64_t> first_layer_number(std::string_view module) {
  const std::vector<std::string_view> parts = split_text(module, '.');
  for (size_t i = 2; i + 1 < parts.size(); ++i)
    if (const auto number = parse_number<int64_t>(parts[i])) return number;
  return {};
}

bool in_chosen_layer(const LoraConfig& config, std::string_view module) {
  if (config.layers_to_transform.empty()) return true;
  std::optional<int64_t> layer;
  if (config.layers_pattern.empty()) layer = first_layer_number(module);
  for (const NamePattern& pattern : config.layers_pattern)
    if (!layer) layer = pattern.layer(module);
  return layer &&
         std::ranges::find(config.layers_to_transform, *layer) != config.layers_to_transform.end();
}

bool is_target(const LoraConfig& config, std::string_view module, ModuleKind kind) {
  if (config.all_linear) return kind == ModuleKind::linear;
  if (!config.targets.fit(module)) return false;
  if (config.targets.pattern) return true;
  const auto& names = config.targets.names;
  return std::ranges::find(names, module) != names.end() || in_chosen_layer(config, module);
}

// The value of the first pattern that fits; `otherwise` if none does.
template <class T>
T by_pattern(const std::vector<std::pair<NamePattern, T>>& patterns, std::string_view key,
             std::string_view module, T otherwise) {
  const auto fits = [module](const auto& entry) { return entry.first.fits(module); };
  const auto first = std::ranges::find_if(patterns, fits);
  if (first == patterns.end()) return otherwise;
  for (auto other = first + 1; other != patterns.end(); ++other)
    MG_CHECK(
        other->second == first->second || other->first.text() > first->first.text() ||
            !fits(*other),
        "{} has '{}' = {} and '{}' = {}, and both fit {}: the first would count here, but PEFT "
        "sorts the patterns when it saves, so that the second would count from then on; change "
        "one of them so that it does not fit",
        key, first->first.text(), first->second, other->first.text(), other->second, module);
  return first->second;
}

ModuleAdapter with_patterns(const LoraConfig& config, std::string_view module) {
  ModuleAdapter adapter{
      .rank = by_pattern(config.rank_pattern, "rank_pattern", module, config.rank),
      .alpha = by_pattern(config.alpha_pattern, "alpha_pattern", module, config.alpha)};
  const auto rank = static_cast<double>(adapter.rank);
  adapter.scale = adapter.alpha / (config.rank_stabilized ? std::sqrt(rank) : rank);
  return adapter;
}

}  // namespace

bool ModuleNames::fit(std::string_view module) const {
  return pattern ? pattern->fits(module) : any_ends_module(names, module);
}

std::optional<ModuleAdapter> adapter_of(const LoraConfig& config, std::string_view module,
                                        ModuleKind kind) {
  if (config.excluded.fit(module)) return {};
  const bool saved_by_whole_name = any_enclosing(module, [&config](std::string_view part) {
    return any_ends_module(config.modules_to_save, part);
  });
  if (saved_by_whole_name || !is_target(config, module, kind)) return {};
  MG_CHECK(
      !saves_module(config, module),
      "{} is a target of the adapter and also in modules_to_save: a name there matches every "
      "module whose name ends with it, even in the middle of a word; write the name from a dot on",
      module);
  return with_patterns(config, module);
}

std::optional<ModuleAdapter> adapter_of_parameter(const LoraConfig& config,
                                                  std::string_view parameter) {
  if (!any_ends_module(config.target_parameters, parameter)) return {};
  return with_patterns(config, parameter);
}

std::vector<int64_t> token_rows_of(const LoraConfig& config, std::string_view module,
                                   ModuleKind kind) {
  const std::vector<int64_t>* found = nullptr;
  for (const auto& [name, ids] : config.trainable_token_indices) {
    if (name.empty() ? kind != ModuleKind::embedding : !is_or_ends_in(module, name)) continue;
    MG_CHECK(found == nullptr, "trainable_token_indices has two entries for {}; join them", module);
    found = &ids;
  }
  return found == nullptr ? std::vector<int64_t>() : *found;
}

bool saves_module(const LoraConfig& config, std::string_view module) {
  return any_enclosing(module, [&config](std::string_view part) {
    return std::ranges::any_of(config.modules_to_save,
                               [part](const std::string& name) { return part.ends_with(name); });
  });
}

}  // namespace megatron::models
