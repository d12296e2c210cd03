// SentencePiece models (Kudo and Richardson, 2018): BPE and Unigram, run by the SentencePiece
// library.
#pragma once

#include <memory>
#include <string_view>

#include "tokenizers/codec.h"

namespace megatron::tokenizers {

struct SentencePieceOptions {
  // Selects which of the model's two special tokens are added around a text, if it has them.
  bool add_bos = true, add_eos = false;
};

// The text of control pieces stays plain text; user-defined pieces are found regardless of the
// options. Bytes that are not UTF-8 are read as U+FFFD. Control pieces decode to nothing, unknown
// ones to the surface given by the model (" U+2047 "). Offsets are not available. Throws Error
// (without the file's name) if the model is malformed; see parse_sentence_piece.
std::unique_ptr<Codec> make_sentence_piece(std::string_view bytes,
                                           const SentencePieceOptions& options);

// True if the model's normalizer collapses runs of spaces and removes them at both ends.
bool removes_extra_spaces(std::string_view bytes);

}  // namespace megatron::tokenizers
