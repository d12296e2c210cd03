// Names of tensors of multi-token prediction in files, as DeepSeek-V3 and GLM-4.5 have them.
#pragma once

#include <string_view>

namespace megatron::models {

// Endings of the names of a depth's copies of the embedding and of the output layer, which files
// may have.
inline constexpr std::string_view kPredictionEmbedding = ".embed_tokens.weight",
                                  kPredictionHead = ".shared_head.head.weight";

}  // namespace megatron::models
