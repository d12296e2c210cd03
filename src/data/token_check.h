// Finds data that was made with another tokenizer before a run begins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/indexed_dataset.h"

namespace megatron::data {

// The range of a set's token ids. It is remembered in `directory`, with the sizes and the times of
// change of .bin and .idx, so that the set is read once only; without a directory nothing is
// remembered. A directory that cannot be written, or a record that does not fit, costs only time.
std::optional<TokenRange> remembered_token_range(const IndexedDataset& set,
                                                 const std::optional<std::string>& directory);

// Throws Error naming the file, the id and the limit when a token id lies outside [0, vocabulary).
// Reads nothing where the element type cannot hold such an id.
void check_token_ids(const IndexedDataset& set, int64_t vocabulary,
                     const std::optional<std::string>& directory);

}  // namespace megatron::data
