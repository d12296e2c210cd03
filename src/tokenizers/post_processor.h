// Post-processors put special tokens round the ids of a text.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace megatron::tokenizers {

struct PostProcessor {
  std::vector<int32_t> before, after;
};

// From "post_processor" of tokenizer.json: null, ByteLevel (adds nothing), TemplateProcessing (its
// "single" template), RobertaProcessing, BertProcessing, Sequence. Throws Error naming any other
// type.
PostProcessor make_post_processor(const Json& settings);

}  // namespace megatron::tokenizers
