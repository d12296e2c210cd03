// Detects data that was made with another tokenizer before a run begins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/indexed_dataset.h"

namespace megatron::data {

// Range of a set's token ids, stored in `directory` (SourceFacts), so that the set is read only
// once.
std::optional<TokenRange> remembered_token_range(const IndexedDataset& set,
                                                 const std::optional<std::string>& directory);

// Throws Error naming the file, the id and the limit if a token id lies outside [0, vocabulary).
// Reads nothing if the element type cannot hold such an id.
void check_token_ids(const IndexedDataset& set, int64_t vocabulary,
                     const std::optional<std::string>& directory);

}  // namespace megatron::data
