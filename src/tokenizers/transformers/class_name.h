// Which of its classes transformers' AutoTokenizer opens a directory with, and what each does.
#pragma once

#include <string>
#include <string_view>

#include "tokenizers/transformers/token_configuration.h"

namespace megatron::tokenizers {

// The class that takes a file as it is.
inline constexpr std::string_view kPlainClass = "TokenizersBackend";

// json: the content of tokenizer.json; ""
// where there is none. The order in which config.json and tokenizer_config.json count is that of
// transformers 5.24.
std::string class_name(const TokenConfiguration& configuration, std::string_view json);

// Whether the class makes components of its own from a vocabulary, in ways that are not known here.
bool is_other_class(std::string_view name);

}  // namespace megatron::tokenizers
