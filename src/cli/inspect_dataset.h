// What `megatron inspect` says about a pair of token files.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizers/tokenizer.h"

namespace megatron::cli {

struct DatasetInspection {
  const tokenizers::Tokenizer* tokenizer = nullptr;  // decodes the first documents
  int64_t documents = 3;
  int64_t characters = 500;  // of each document; 0: all
};

// Counts, document lengths in tokens (least, median, mean, greatest, histogram by powers of two)
// and the first documents decoded. One pass over the lengths, a fixed amount of memory.
void inspect_dataset(const std::string& prefix, const DatasetInspection& inspection);

}  // namespace megatron::cli
