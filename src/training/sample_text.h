#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/stage.h"
#include "tokenizers/tokenizer.h"

namespace megatron::training {

// What a model in training writes now, for people to read: drawn as `megatron generate` does by
// default, but cooler. On meta as many tokens as may be, without meaning.
std::string sample_text(const models::Stage& model, Runtime& runtime,
                        const tokenizers::Tokenizer& tokenizer, const std::string& prompt,
                        int64_t tokens, const std::vector<int32_t>& end_tokens = {});

}  // namespace megatron::training
