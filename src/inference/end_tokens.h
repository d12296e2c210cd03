// Tokens that end a model's text, for all commands that generate text.
//
// These are eos_token_id (a number or a list) of generation_config.json or, if that file or its key
// is absent, of config.json, as in transformers, and in addition the tokenizer's end-of-sequence
// and end-of-document tokens.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizers/tokenizer.h"

namespace megatron::inference {

struct NamedConfig {
  std::string name;  // used in messages
  Json json;
};

// Returns each token once. configs: the first that has the key counts. Throws Error naming file and
// key if the value is not a number or a list of numbers; warns of numbers that are not tokens, and
// drops them.
std::vector<int32_t> end_tokens(std::span<const NamedConfig> configs,
                                const tokenizers::Tokenizer& tokenizer);
// Reads the files of a model's directories, its own and its base model's: of each kind of file, the
// first directory's comes first.
std::vector<int32_t> end_tokens(std::initializer_list<std::string> directories,
                                const tokenizers::Tokenizer& tokenizer);

}  // namespace megatron::inference
