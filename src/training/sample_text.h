#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/stage.h"
#include "tokenizers/tokenizer.h"

namespace megatron::training {

// Generates a readable sample text from a model in training, with the default sampling of `megatron
// generate` but a lower temperature. On meta it returns the maximum number of tokens, all
// meaningless.
std::string sample_text(const models::Stage& model, Runtime& runtime,
                        const tokenizers::Tokenizer& tokenizer, const std::string& prompt,
                        int64_t tokens, const std::vector<int32_t>& end_tokens = {});

}  // namespace megatron::training
