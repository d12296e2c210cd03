// The vocabularies of TikToken files.
#pragma once

#include <string_view>

#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {

// Tokens as bytes, with their ids. Throws Error naming the line or entry for malformed base64 or
// numbers, a token that is empty, longer than 1024 bytes or given twice, and a byte without a
// token.
Vocabulary parse_tik_token_lines(std::string_view lines);
// The first `limit` entries of the list, with ids from `first_id` on.
Vocabulary parse_tik_token_list(std::string_view json, int64_t first_id, int64_t limit);

}  // namespace megatron::tokenizers
