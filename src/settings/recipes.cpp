#include "settings/recipes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/fields.h"
#include "settings/embedded_recipes.h"

namespace megatron::settings {
namespace {

std::optional<std::string_view> text_of(std::span<const EmbeddedFile> files,
                                        std::string_view name) {
  const auto file = std::ranges::find(files, name, &EmbeddedFile::name);
  return file == files.end() ? std::nullopt : std::optional(file->text);
}

std::vector<std::string> names_of(std::span<const EmbeddedFile> files) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files)
    if (!file.name.starts_with("twins/")) names.emplace_back(file.name);
  return names;
}

// Formats the names in lines, which a message does not break.
std::string in_lines(const std::vector<std::string>& names) {
  constexpr size_t kWidth = 96;
  std::string text, line;
  for (const std::string& name : names) {
    if (line.size() + name.size() > kWidth) text += std::exchange(line, "") + "\n";
    line += "  " + name;
  }
  return text + line;
}

// Returns the name that begins with a word, such as a model without its machine, else the nearest
// one, or "".
std::string meant(const std::string& word, const std::vector<std::string>& names) {
  const auto begun = std::ranges::find_if(
      names, [&](const std::string& name) { return !word.empty() && name.starts_with(word); });
  return begun != names.end() ? *begun : nearest(word, names);
}

}  // namespace

std::vector<std::string> recipe_names() { return names_of(kRecipes); }

std::string_view recipe_text(const std::string& name) {
  if (const auto text = text_of(kRecipes, name)) return *text;
  const std::vector<std::string> names = recipe_names();
  const bool twin = name.starts_with("twins/");
  const std::string near = meant(twin ? name.substr(6) : name, names);
  fail(
      "there is no recipe '{}'{}; the recipes, each of which has a small twin (twins/NAME), "
      "are:\n{}",
      name, near.empty() ? "" : fmt::format("; did you mean {}{}?", twin ? "twins/" : "", near),
      in_lines(names));
}

std::vector<std::string> model_config_names() { return names_of(kModels); }

std::optional<std::string_view> model_config_text(std::string_view name) {
  return text_of(kModels, name);
}

}  // namespace megatron::settings
