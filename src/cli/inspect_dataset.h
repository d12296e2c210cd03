// Output of `megatron inspect` for a pair of token files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tokenizers/tokenizer.h"

namespace megatron::cli {

struct DatasetInspection {
  const tokenizers::Tokenizer* tokenizer = nullptr;  // decodes the first documents
  std::optional<int64_t> vocabulary;                 // exclusive bound of token ids; none: unknown
  bool verify = false;                               // also reads every token
  int64_t documents = 3;
  int64_t characters = 500;  // per document; 0: all
};

// Prints counts, document lengths in tokens (minimum, median, mean, maximum, histogram by powers of
// two) and the first documents decoded; with verify also the range of token ids. Checks the whole
// index, in a fixed amount of memory. Throws Error naming the damage; with verify, damage or a
// token id outside the vocabulary is printed instead, and the result is false.
bool inspect_dataset(const std::string& prefix, const DatasetInspection& inspection);

}  // namespace megatron::cli
