// The files of recipes/, embedded in the program by cmake/embed.cmake.
#pragma once

#include <span>
#include <string_view>

namespace megatron::settings {

struct EmbeddedFile {
  std::string_view name, text;  // name: path without its extension, "twins/llama2_7b"
};

extern const std::span<const EmbeddedFile> kRecipes, kModels;

}  // namespace megatron::settings
