// What `megatron inspect` says about a pair of token files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tokenizers/tokenizer.h"

namespace megatron::cli {

struct DatasetInspection {
  const tokenizers::Tokenizer* tokenizer = nullptr;  // decodes the first documents
  std::optional<int64_t> vocabulary;                 // token ids lie below it; none: not known
  bool verify = false;                               // every token is read, too
  int64_t documents = 3;
  int64_t characters = 500;  // of each document; 0: all
};

// Counts, document lengths in tokens (least, median, mean, greatest, histogram by powers of two)
// and the first documents decoded; with verify the range of the token ids. The whole index is
// checked, in a fixed amount of memory. Throws Error naming what is damaged; with verify that, or a
// token id outside the vocabulary, is printed, and the result false.
bool inspect_dataset(const std::string& prefix, const DatasetInspection& inspection);

}  // namespace megatron::cli
