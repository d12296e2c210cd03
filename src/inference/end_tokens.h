// The tokens that end a text of a model, wherever texts are generated.
//
// They are eos_token_id, a number or a list, of generation_config.json, or, where that file or the
// key in it is absent, of config.json, as transformers has it; besides, the tokenizer's end of a
// sequence and of a document.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizers/tokenizer.h"

namespace megatron::inference {

struct NamedConfig {
  std::string name;  // for messages
  Json json;
};

// Each token once. configs: the first that has the key counts. Throws Error naming file and key for
// a value that is no number or list of numbers; warns of numbers that are no tokens, and leaves
// them out.
std::vector<int32_t> end_tokens(std::span<const NamedConfig> configs,
                                const tokenizers::Tokenizer& tokenizer);
// By the files of a model directory.
std::vector<int32_t> end_tokens(const std::string& directory,
                                const tokenizers::Tokenizer& tokenizer);

}  // namespace megatron::inference
