// Named runs and models: the files of recipes/, which are embedded in the program.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::settings {

// --recipe NAME: the flags of a whole run, recipes/NAME.yaml; sorted. Each has a twin with the same
// flags and small sizes, "twins/NAME", which is not listed (docs/recipes.md).
std::vector<std::string> recipe_names();
// Returns the text of a recipe or twin. Throws Error that names the nearest name and all known
// ones.
std::string_view recipe_text(const std::string& name);

// --model-config NAME: the config.json of a published model, recipes/models/NAME.json; sorted.
std::vector<std::string> model_config_names();
// Returns the text, or nullopt if there is no model of that name.
std::optional<std::string_view> model_config_text(std::string_view name);

}  // namespace megatron::settings
