// Tokenizers without a file.
#pragma once

#include <cstdint>
#include <memory>

#include "tokenizers/codec.h"

namespace megatron::tokenizers {

// Megatron-LM's NullTokenizer: the text is token ids below `size`, in decimal, with white space
// between them. eod: the end of a document, in [0, size). Throws Error on sizes below 1 and on a
// bad eod; encode does on anything that is no such id.
std::unique_ptr<Codec> make_null_codec(int64_t size, int64_t eod);

// Ids are the bytes of a text; it need not be UTF-8. size: at least 256, ids from 256 on have no
// token. The end of a document is byte 0.
std::unique_ptr<Codec> make_byte_codec(int64_t size);

}  // namespace megatron::tokenizers
