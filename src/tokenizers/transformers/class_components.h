// Tokenizer classes of transformers (5.24) that use only the vocabulary, merges and post-processor
// of a file, and make all other components themselves.
#pragma once

#include <string_view>

#include "tokenizers/definition.h"
#include "tokenizers/transformers/token_configuration.h"

namespace megatron::tokenizers {

// Sets the class's default tokens in the configuration and its components in the definition, for
// LlamaTokenizer, GemmaTokenizer, GPT2Tokenizer, CodeGenTokenizer, GPTNeoXTokenizer, Qwen2Tokenizer
// and Qwen3_5Tokenizer. Other classes change nothing.
void apply_class(std::string_view name, TokenConfiguration& configuration, Definition& definition);

}  // namespace megatron::tokenizers
