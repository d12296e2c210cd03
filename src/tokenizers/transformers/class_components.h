// The classes of transformers (5.24) that keep of a file its vocabulary, merges and post-processor,
// and make all other components themselves.
#pragma once

#include <string_view>

#include "tokenizers/definition.h"
#include "tokenizers/transformers/token_configuration.h"

namespace megatron::tokenizers {

// Gives the configuration the tokens that the class has by default, and the definition its
// components: LlamaTokenizer, GemmaTokenizer, GPT2Tokenizer, CodeGenTokenizer, GPTNeoXTokenizer,
// Qwen2Tokenizer and Qwen3_5Tokenizer. Other classes change nothing.
void apply_class(std::string_view name, TokenConfiguration& configuration, Definition& definition);

}  // namespace megatron::tokenizers
