#include "models/adapters/adapter_rules.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/name_list.h"
#include "models/adapters/adapter_directory.h"
#include "models/adapters/expert_modules.h"
#include "models/stage.h"

namespace megatron::models {
namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.bias".
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

bool trains(const LoraConfig& config, const std::string& tensor) {
  const std::string module = module_of(tensor);
  if (saves_module(config, module)) return true;
  const bool bias = tensor.ends_with(kBias) || tensor.ends_with("_bias");  // of fused experts
  if (!bias || config.bias == LoraBias::none) return false;
  return config.bias == LoraBias::all || adapter_of(config, module, ModuleKind::linear).has_value();
}

std::string prefixed(const std::string& name) {
  return std::string(checkpoint::kAdapterPrefix) + name;
}

ModuleKind kind_of(nn::AdaptedKind kind) {
  if (kind == nn::AdaptedKind::embedding) return ModuleKind::embedding;
  return kind == nn::AdaptedKind::output ? ModuleKind::output : ModuleKind::linear;
}

AdapterPart part_of(nn::AdapterTensor tensor) {
  switch (tensor) {
    case nn::AdapterTensor::a: return AdapterPart::a;
    case nn::AdapterTensor::b: return AdapterPart::b;
    case nn::AdapterTensor::b_bias: return AdapterPart::b_bias;
    case nn::AdapterTensor::magnitude: return AdapterPart::magnitude;
    case nn::AdapterTensor::embedding_a: return AdapterPart::embedding_a;
    case nn::AdapterTensor::embedding_b: return AdapterPart::embedding_b;
    case nn::AdapterTensor::token_rows: return AdapterPart::token_rows;
  }
  return AdapterPart::a;
}

// The modules of a model, by the kind of their weights, and those that have an adapter.
struct Modules {
  explicit Modules(const Stage& whole) {
    for (const parallel::ParameterSpec* spec : whole.parameters()) {
      for (const parallel::CanonicalTensor& tensor : spec->placement.tensors) {
        const std::string& name = tensor.name;
        if (name.starts_with(checkpoint::kAdapterPrefix)) {
          const StoredName stored = parse_stored_name(name);
          auto& modules = stored.part == AdapterPart::token_rows ? with_token_rows : adapted;
          modules.insert(stored.module);
        } else if (name.ends_with(kWeight)) {
          all.emplace_back(module_of(name), spec->role);
        }
      }
    }
  }

  static ModuleKind kind_of(parallel::Role role) {
    if (role == parallel::Role::embedding) return ModuleKind::embedding;
    return role == parallel::Role::output ? ModuleKind::output : ModuleKind::linear;
  }

  std::vector<std::pair<std::string, parallel::Role>> all;
  std::set<std::string> adapted, with_token_rows;
};

// A name of the targets that no module of the model fits; "" if there is none.
std::string idle_target(const LoraConfig& config, const Modules& modules) {
  for (const std::string& name : config.targets.names) {
    const ModuleNames alone{.names = {name}};
    if (std::ranges::none_of(modules.all,
                             [&](const auto& module) { return alone.fit(module.first); }))
      return name;
  }
  return {};
}

std::optional<nn::AdapterRules::Adapter> rule_of(const LoraConfig& config,
                                                 const std::optional<ModuleAdapter>& adapter) {
  if (!adapter) return std::nullopt;
  return nn::AdapterRules::Adapter{.rank = adapter->rank,
                                   .scale = adapter->scale,
                                   .b_bias = config.lora_bias,
                                   .magnitude = config.weight_decomposed,
                                   .dropout = config.dropout};
}

// Parameters of all experts of a layer that can be targets: those that the family stores, and those
// that consist of its experts' modules.
struct ExpertParameters {
  explicit ExpertParameters(const Stage& whole) {
    for (const parallel::ParameterSpec* spec : whole.parameters()) {
      for (const parallel::CanonicalTensor& tensor : spec->placement.tensors) {
        const std::string& name = tensor.name;
        if (name.starts_with(checkpoint::kAdapterPrefix)) continue;
        if (name.ends_with(kWeight)) {
          if (const auto expert = expert_module(module_of(name)))
            of_modules.insert(expert->parameter_name());
        } else if (tensor.global.rank() == 3) {
          stored.insert(name);
        }
      }
    }
  }

  bool has(const std::string& target) const {
    const ModuleNames alone{.names = {target}};
    const auto fits = [&](const std::string& name) { return alone.fit(name); };
    return std::ranges::any_of(stored, fits) || std::ranges::any_of(of_modules, fits);
  }

  std::set<std::string> stored, of_modules;
};

// Throws Error for a name, pattern or layer that is given to choose among modules, and chooses
// none.
void check_choices(const LoraConfig& config, const Modules& modules,
                   const ExpertParameters& parameters) {
  const auto any = [](const auto& names, const auto& fits) {
    return std::ranges::any_of(names, fits);
  };
  std::vector<std::string> all, adapted(modules.adapted.begin(), modules.adapted.end());
  for (const auto& [module, role] : modules.all) all.push_back(module);
  for (const auto* names : {&parameters.stored, &parameters.of_modules})
    std::ranges::copy_if(*names, std::back_inserter(adapted), [&](const std::string& name) {
      return adapter_of_parameter(config, name).has_value();
    });
  const auto check_excluded = [&](const ModuleNames& names, const std::string& text) {
    MG_CHECK(any(all, [&](const std::string& module) { return names.fit(module); }),
             "the adapter excludes '{}', which fits no module of the model, whose modules are {}",
             text, checkpoint::counted(all));
  };
  for (const std::string& name : config.excluded.names) check_excluded({.names = {name}}, name);
  if (config.excluded.pattern) check_excluded(config.excluded, config.excluded.pattern->text());
  const auto check_patterns = [&](const auto& patterns, std::string_view what) {
    for (const auto& [pattern, value] : patterns)
      MG_CHECK(any(adapted, [&](const std::string& module) { return pattern.fits(module); }),
               "the adapter has {} for '{}', which fits no module with an adapter; they are {}",
               what, pattern.text(), checkpoint::counted(adapted));
  };
  check_patterns(config.rank_pattern, "a rank");
  check_patterns(config.alpha_pattern, "an alpha");
  for (const int64_t layer : config.layers_to_transform) {
    LoraConfig alone = config;
    alone.layers_to_transform = {layer};
    MG_CHECK(any(modules.adapted,
                 [&](const std::string& module) {
                   return adapter_of(alone, module, ModuleKind::linear).has_value();
                 }),
             "the adapter has layer {}, in which none of its targets is: the first layer is 0",
             layer);
  }
}

void check_experts(const LoraConfig& config, const Modules& modules, const Stage& whole) {
  const ExpertParameters parameters(whole);
  std::vector<std::string> names(parameters.stored.begin(), parameters.stored.end());
  names.insert(names.end(), parameters.of_modules.begin(), parameters.of_modules.end());
  for (const std::string& target : config.target_parameters)
    MG_CHECK(
        parameters.has(target),
        "the adapter's target_parameters has '{}', which matches no parameter that can have an "
        "adapter of this kind, which are those of experts: the model has {}",
        target, names.empty() ? "none" : checkpoint::counted(names));
  const auto adapted = std::ranges::find_if(modules.adapted, is_of_experts);
  MG_CHECK(adapted == modules.adapted.end() || (!config.weight_decomposed && !config.lora_bias),
           "the adapter's targets include {}: adapters of experts support neither use_dora nor "
           "lora_bias; leave these out, or exclude experts (--lora-exclude '.*\\.experts\\..*')",
           *adapted);
}

// A table of tokens or an output layer, and its number of rows.
struct TokenTable {
  std::string module;
  ModuleKind kind = ModuleKind::embedding;
  int64_t rows = 0;
};

std::vector<TokenTable> token_tables(const Stage& whole) {
  std::vector<TokenTable> tables;
  for (const parallel::ParameterSpec* spec : whole.parameters()) {
    const ModuleKind kind = Modules::kind_of(spec->role);
    for (const parallel::CanonicalTensor& tensor : spec->placement.tensors)
      if (kind != ModuleKind::linear && tensor.name.ends_with(kWeight) &&
          !tensor.name.starts_with(checkpoint::kAdapterPrefix))
        tables.push_back({module_of(tensor.name), kind, tensor.global[0]});
  }
  return tables;
}

void check_token_rows(const LoraConfig& config, const Stage& whole) {
  const std::vector<TokenTable> tables = token_tables(whole);
  std::vector<std::string> names;
  for (const TokenTable& table : tables) names.push_back(table.module);
  for (const auto& entry : config.trainable_token_indices) {
    LoraConfig alone = config;
    alone.trainable_token_indices = {entry};
    MG_CHECK(std::ranges::any_of(tables,
                                 [&](const TokenTable& table) {
                                   return !token_rows_of(alone, table.module, table.kind).empty();
                                 }),
             "the adapter trains rows of '{}' (trainable_token_indices), which is no table of "
             "tokens of the model; it has {}",
             entry.first, checkpoint::counted(names));
  }
  for (const TokenTable& table : tables) {
    const std::vector<int64_t> rows = token_rows_of(config, table.module, table.kind);
    if (rows.empty()) continue;
    const int64_t largest = std::ranges::max(rows);
    MG_CHECK(largest < table.rows,
             "the adapter trains the row of token {} of {} (trainable_token_indices), which has {} "
             "rows: ids must lie in [0, {}); leave it out, or give the model more tokens first",
             largest, table.module, table.rows, table.rows);
    MG_CHECK(!adapter_of(config, table.module, table.kind),
             "the adapter trains rows of {} (trainable_token_indices), which is also one of its "
             "targets: choose one of the two",
             table.module);
    MG_CHECK(!saves_module(config, table.module),
             "the adapter trains rows of {} (trainable_token_indices), which is also trained whole "
             "(modules_to_save): choose one of the two",
             table.module);
  }
}

std::optional<ModuleAdapter> adapter_in_model(const LoraConfig& config, const std::string& module,
                                              parallel::Role role) {
  const ModuleKind kind = Modules::kind_of(role);
  return kind == ModuleKind::linear ? adapter_of_matrix(config, module)
                                    : adapter_of(config, module, kind);
}

}  // namespace

std::string stored_with_adapter(const LoraConfig& config, const std::string& tensor) {
  if (tensor.starts_with(checkpoint::kAdapterPrefix)) return tensor;
  const std::string module = module_of(tensor);
  const bool inside =
      !saves_module(config, module) && adapter_of(config, module, ModuleKind::linear).has_value();
  return prefixed(module + (inside ? ".base_layer" : "") + tensor.substr(module.size()));
}

nn::AdapterRules adapter_rules(const LoraConfig& config) {
  return {
      .adapter_of =
          [&config](const std::string& module, nn::AdaptedKind kind) {
            return rule_of(config, kind == nn::AdaptedKind::linear
                                       ? adapter_of_matrix(config, module)
                                       : adapter_of(config, module, kind_of(kind)));
          },
      .token_rows_of =
          [&config](const std::string& module, nn::AdaptedKind kind) {
            return token_rows_of(config, module, kind_of(kind));
          },
      .stored_name = [](const std::string& module,
                        nn::AdapterTensor tensor) { return stored_name(module, part_of(tensor)); },
      .trains = [&config](const std::string& tensor) { return trains(config, tensor); },
      .gaussian_a = config.init == LoraInit::gaussian,
      .random_b = config.init == LoraInit::random,
      .b_rate = config.b_rate,
      .adapter_of_parameter =
          [&config](const std::string& parameter) {
            return rule_of(config, adapter_of_parameter(config, parameter));
          },
      .stored_parameter_name =
          [&config](const std::string& parameter, bool is_b) {
            return stored_parameter_name(config, parameter, is_b ? AdapterPart::b : AdapterPart::a);
          }};
}

bool leaves_model(const LoraConfig& config) {
  return config.modules_to_save.empty() && config.bias == LoraBias::none;
}

std::vector<std::string> expert_parameters(const Stage& whole) {
  const std::set<std::string> stored = ExpertParameters(whole).stored;
  return {stored.begin(), stored.end()};
}

AdaptedModules adapted_modules(const LoraConfig& config, const Stage& whole) {
  const Modules modules(whole);
  AdaptedModules found;
  for (const auto& [module, role] : modules.all) {
    found.all.push_back(module);
    if (modules.adapted.contains(module))
      found.adapted.emplace(module, *adapter_in_model(config, module, role));
  }
  for (const std::string& parameter : ExpertParameters(whole).stored)
    if (const auto adapter = adapter_of_parameter(config, parameter))
      found.parameters.emplace(parameter, *adapter);
  return found;
}

void check_adapter(const LoraConfig& config, const Stage& whole) {
  MG_CHECK(
      !config.weight_decomposed || !config.lora_bias,
      "the adapter has DoRA (use_dora) and biases (lora_bias), which is not supported together");
  const Modules modules(whole);
  std::vector<std::string> names, unfit;
  for (const auto& [module, role] : modules.all) {
    names.push_back(module);
    if (adapter_in_model(config, module, role) && !modules.adapted.contains(module))
      unfit.push_back(module);
  }
  for (const auto& [module, role] : modules.all)
    MG_CHECK(!config.weight_decomposed || role == parallel::Role::hidden ||
                 !modules.adapted.contains(module),
             "the adapter has DoRA (use_dora) for {}; it is supported for the matrices of layers",
             module);
  check_experts(config, modules, whole);
  check_token_rows(config, whole);
  for (const std::string& name : config.modules_to_save)
    MG_CHECK(!config.file.is_null() ||
                 std::ranges::any_of(names,
                                     [&](const std::string& module) {
                                       return saves_module({.modules_to_save = {name}}, module);
                                     }),
             "the adapter saves the module '{}', but no module of the model has this name or end; "
             "they are {}",
             name, checkpoint::counted(names));
  const std::string idle = idle_target(config, modules);
  MG_CHECK(idle.empty(),
           "the adapter's target '{}' matches no module of the model, whose modules are {}", idle,
           checkpoint::counted(names));
  MG_CHECK(unfit.empty() || config.all_linear,
           "the adapter's targets include {}, which cannot have one: choose among the matrices of "
           "attention and feed-forward blocks",
           checkpoint::counted(unfit));
  MG_CHECK(!modules.adapted.empty(),
           "the adapter's targets match no module of the model, whose modules are {}",
           checkpoint::counted(names));
  if (config.file.is_null()) check_choices(config, modules, ExpertParameters(whole));
}

}  // namespace megatron::models
