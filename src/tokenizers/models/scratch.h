// Working memory of encode, reused between calls.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizers/models/word_cache.h"
#include "tokenizers/regex/regex.h"

namespace megatron::tokenizers {

struct Scratch {
  RegexScratch regex;
  WordCache words;
  // For the merges of one word.
  std::vector<int32_t> symbols;
  std::vector<int64_t> merges;
};

}  // namespace megatron::tokenizers
