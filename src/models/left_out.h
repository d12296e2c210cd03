// Models that leave out the embeddings of masked tokens.
#pragma once

#include <cstdint>

namespace megatron::models {

// ESM-2's token dropout (Lin et al. 2023, A.1): the embeddings of masked tokens are left out, and
// those of a text's other tokens are scaled up to what they are on average if training masks 15% of
// the tokens and shows the mask for 80% of these. Returns that factor, (1 - 0.15 * 0.8) / (1 -
// masks / tokens); 0 if all tokens are masks.
inline double embedding_factor(int64_t tokens, int64_t masks) {
  constexpr double kShown = 1 - 0.15 * 0.8;
  if (masks >= tokens) return 0;
  return kShown * static_cast<double>(tokens) / static_cast<double>(tokens - masks);
}

}  // namespace megatron::models
