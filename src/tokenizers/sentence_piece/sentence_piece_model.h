// The contents of a SentencePiece .model, parsed from its protocol buffer and validated, because
// the library that runs it follows offsets of the file without checks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

struct SentencePieceModel {
  enum class Algorithm { unigram = 1, bpe = 2, word = 3, character = 4 };
  struct Piece {
    std::string_view text;  // points into the bytes that were read
    double score = 0;
    int32_t type = 1;  // kNormal ...
  };
  static constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5,
                           kByte = 6;

  Algorithm algorithm = Algorithm::unigram;
  // Settings of the normalizer: it collapses runs of spaces and strips them at the ends; it puts a
  // space before the text; it writes spaces as U+2581.
  bool removes_extra_spaces = true, adds_prefix = true, escapes_spaces = true;
  std::string_view normalization_map;  // points into the bytes that were read; "" if there is none
  bool byte_fallback = false;
  int64_t unknown_id = 0, bos_id = 1, eos_id = 2;  // negative if the model has none
  std::string unknown_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::vector<Piece> pieces;       // by id
  size_t longest_replacement = 3;  // most bytes that one byte of text can become by normalization
  std::string bytes;               // the model without its self-test data
};

// True if a file begins like a model: with a piece.
bool begins_as_sentence_piece(std::string_view bytes);

// Throws Error naming the offset and the problem: a broken protocol buffer, a piece that is empty,
// not UTF-8, given twice, longer than 8000 bytes or without a finite score, a normalization map
// that points outside itself, more than 64 user-defined pieces of which each is a prefix of the
// next, or a model that is neither BPE nor Unigram.
SentencePieceModel parse_sentence_piece(std::string_view bytes);

}  // namespace megatron::tokenizers
