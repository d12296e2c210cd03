// megatron generate --fill-mask
#pragma once

#include <string>
#include <vector>

#include "cli/model_rank.h"
#include "inference/engine_options.h"
#include "tokenizers/tokenizer.h"

namespace megatron::cli {

// Prints the `top` most likely tokens at each mask of the texts as JSON (inference/fill_mask.h):
// those of a single text, or a list. Throws Error for a text without a mask, or beyond the model's
// positions.
void fill_masks(const std::vector<std::string>& texts, int64_t top,
                const tokenizers::Tokenizer& tokenizer, ModelRank& rank,
                inference::EngineOptions options);

}  // namespace megatron::cli
