// Checks a tokenizer against test vectors of the original implementation: files of JSON lines next
// to it.
//
// A line's kind is known by its fields:
//   text, ids           encoding; ids_special (with the tokens round it), ids_ordinary (special
//                       tokens in the text taken as plain text), decoded, decoded_skip_special (of
//                       ids_special), offsets (flat, in code points); tag is not checked
//   text, pair, ids     two texts joined; type_ids
//   bytes_hex, ids      encoding of bytes that need not be UTF-8; decoded, decoded_hex
//   ids, decoded        decoding of ids; decoded_skip_special
//   pieces, ids         decoding one id at a time without special tokens, and the rest; pieces_hf
//                       is not checked
//   text, ids_json, ids_model  encoding where a tokenizer.json and the SentencePiece model that it
//                       was made of differ
//   size                size of the vocabulary; bos, eos, pad, where they are given; opened_by is
//                       not checked
//   messages            a chat and its rendering (chat_cases.h)
// A field that the kind does not have, and a file without lines, are failures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

struct VectorReport {
  int64_t passed = 0, failed = 0;
};

// Checks `files` or, if that is empty, every *.jsonl of `directory`, which holds the tokenizer (not
// needed if there are only chats). on_mismatch is called with file:line and the difference. Throws
// Error if nothing can be checked: no tokenizer, no file.
VectorReport check_vectors(const std::string& directory, std::vector<std::string> files,
                           const std::function<void(std::string_view)>& on_mismatch);

}  // namespace megatron::tokenizers
