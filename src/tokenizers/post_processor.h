// Post-processors put special tokens round the ids of a text.
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
  // Offsets lose the white space at a token's ends; once for each entry. True (add_prefix_space):
  // a single space before the first token may be none of the text's, and stays.
  std::vector<bool> trims;

  // text_of: the letters of a token, in the spelling of byte_level.h; of an added token, the text
  // that it stands for.
  void trim(std::span<Range> offsets, FunctionRef<std::string_view(size_t i)> text_of) const;
};

// From "post_processor" of tokenizer.json: null, ByteLevel (only trims), TemplateProcessing (its
// "single" template), RobertaProcessing, BertProcessing, Sequence. Throws Error naming any other
// type.
PostProcessor make_post_processor(const Json& settings);

}  // namespace megatron::tokenizers
