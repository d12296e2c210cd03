// Runs and models by name: the files of recipes/, which are part of the program.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::settings {

// --recipe NAME: the flags of a whole run, recipes/NAME.yaml; sorted. Each has a twin of the same flags and
// small sizes, "twins/NAME", which is not listed (docs/recipes.md).
std::vector<std::string> recipe_names();
// The file's text, of a twin too. Throws Error that names the nearest and all there are.
std::string_view recipe_text(const std::string& name);

// --model-config NAME: the config.json of a published model, recipes/models/NAME.json; as above.
std::vector<std::string> model_config_names();
// Its text; nullopt: no model is called so.
std::optional<std::string_view> model_config_text(std::string_view name);

}  // namespace megatron::settings
