// Tokenizers without a file.
#pragma once

#include <cstdint>
#include <memory>

#include "tokenizers/codec.h"

namespace megatron::tokenizers {

// Megatron-LM's NullTokenizer: the text consists of decimal token ids below `size`, separated by
// white space. eod: end-of-document id, in [0, size). Throws Error for a size below 1 or an invalid
// eod; encode throws for anything that is not such an id.
std::unique_ptr<Codec> make_null_codec(int64_t size, int64_t eod);

// Ids are the bytes of a text, which need not be UTF-8. size: at least 256; ids from 256 on have no
// token. Byte 0 is the end of a document.
std::unique_ptr<Codec> make_byte_codec(int64_t size);

}  // namespace megatron::tokenizers
