// Post-processors add special tokens around the ids of a text.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

struct PostProcessor {
  std::vector<int32_t> before, after;
  // Each entry trims the white space at the ends of tokens' offsets once. True (add_prefix_space):
  // a single space before the first token may not belong to the text, and is kept.
  std::vector<bool> trims;

  // text_of: a token in the letters of byte_level.h; for an added token, the text that it
  // represents.
  void trim(std::span<Range> offsets, FunctionRef<std::string_view(size_t i)> text_of) const;
};

// Creates the "post_processor" of tokenizer.json: null, ByteLevel (only trims), TemplateProcessing
// (its "single" template), RobertaProcessing, BertProcessing, Sequence. Throws Error naming any
// other type.
PostProcessor make_post_processor(const Json& settings);

}  // namespace megatron::tokenizers
