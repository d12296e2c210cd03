// Extended grapheme clusters of Unicode 17 (annex 29), without its rule for conjuncts (GB9c).
#pragma once

#include <cstddef>
#include <string_view>

namespace megatron::tokenizers {

// Returns the end of the cluster that begins at `begin`, which must be the start of one, in valid
// UTF-8.
size_t grapheme_end(std::string_view text, size_t begin);

}  // namespace megatron::tokenizers
