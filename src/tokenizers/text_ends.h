// Special tokens around the texts of encoders, when texts are cut.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// The tokens that a tokenizer puts before and after a text, such as BERT's [CLS] and [SEP];
// nullopt: none. If it puts several on a side, this is the outermost one.
struct TextEnds {
  std::optional<int32_t> first, last;
};
TextEnds text_ends(const Tokenizer& tokenizer);

// Cuts a text to `length` tokens (at least 1). Keeps the first tokens or the last ones, and in any
// case the tokens `ends`. If length is 1, only the one before the text is kept.
void cut_text(std::vector<int32_t>& ids, int64_t length, bool keeps_start,
              const TextEnds& ends = {});

// Cuts two texts without special tokens to `length` tokens in total: the longer one until both are
// equally long, then both alternately, as transformers' longest_first does. keeps_start: as above.
void cut_pair(std::vector<int32_t>& first, std::vector<int32_t>& second, int64_t length,
              bool keeps_start);

}  // namespace megatron::tokenizers
