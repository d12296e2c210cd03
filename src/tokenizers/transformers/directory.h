// A directory's tokenizer as transformers' AutoTokenizer (5.24) opens it: its file, with the
// additions and changes from the files next to it.
#pragma once

#include <optional>

#include "tokenizers/definition.h"
#include "tokenizers/tokenizer_file.h"

namespace megatron::tokenizers {

// Returns nothing for files that have a codec of their own: TikToken's, and a SentencePiece model
// in a directory without tokenizer_config.json and without a config.json that names a model_type.
//
// Tokens that only the configuration has are numbered after the vocabulary, those of
// added_tokens_decoder (or added_tokens.json) in the order of the ids there, then those that have a
// name, then extra_special_tokens; a warning says where an id differs from the one in the file.
// Throws Error (without the file's name) where a file is malformed, where a token would take the id
// of another one, and for SentencePiece models of classes that change the vocabulary in ways of
// their own.
std::optional<Definition> open_definition(const TokenizerFile& file);

}  // namespace megatron::tokenizers
