// Finds the class with which transformers' AutoTokenizer opens a directory.
#pragma once

#include <string>
#include <string_view>

#include "tokenizers/transformers/token_configuration.h"

namespace megatron::tokenizers {

// The class that uses tokenizer.json as it is.
inline constexpr std::string_view kPlainClass = "TokenizersBackend";

// json: the content of tokenizer.json, or "" if there is none. config.json and
// tokenizer_config.json have the precedence of transformers 5.24.
std::string class_name(const TokenConfiguration& configuration, std::string_view json);

// True if the class makes its own components from a vocabulary in ways that are not known here.
bool is_other_class(std::string_view name);

}  // namespace megatron::tokenizers
