// Special tokens around the texts of encoders, when texts are cut.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// The tokens that a tokenizer puts before and after a text: [CLS] and [SEP] of BERT's. Absent:
// none. A tokenizer that puts several on a side has the outermost one here.
struct TextEnds {
  std::optional<int32_t> first, last;
};
TextEnds text_ends(const Tokenizer& tokenizer);

// Cuts a text to `length` tokens, the first or the last ones, but for the tokens at its ends, which
// stay. length: at least 1; a text of one token keeps that before it.
void cut_text(std::vector<int32_t>& ids, int64_t length, bool keeps_start,
              const TextEnds& ends = {});

// Cuts two texts without tokens around them to `length` tokens together: the longer one until both
// are equally long, then both in turn, as transformers' longest_first does. keeps_start: as above.
void cut_pair(std::vector<int32_t>& first, std::vector<int32_t>& second, int64_t length,
              bool keeps_start);

}  // namespace megatron::tokenizers
