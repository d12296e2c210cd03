// SentencePiece models (Kudo and Richardson, 2018): BPE and Unigram, run by the SentencePiece
// library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizers/codec.h"

namespace megatron::tokenizers {

struct SentencePieceOptions {
  // Which of its two the model puts round a text, where it has them.
  bool add_bos = true, add_eos = false;
};

// Text of control pieces stays plain text; user-defined pieces are found whatever the options say.
// A byte that is no UTF-8 is read as U+FFFD. Control pieces decode to nothing, unknown ones to what
// the model says (" U+2047 "). There are no offsets. Throws Error (without the file's name) where
// the model is malformed; see parse_sentence_piece.
std::unique_ptr<Codec> make_sentence_piece(std::string_view bytes,
                                           const SentencePieceOptions& options);

// Whether the model's normaliser makes one space of many, and none at both ends.
bool removes_extra_spaces(std::string_view bytes);

}  // namespace megatron::tokenizers
