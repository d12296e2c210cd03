// Post-processors add special tokens around the ids of a text, and around and between those of two.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"
#include "tokenizers/codec.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

// A special token, or all tokens of a text in its place, with their token type id.
struct InputPiece {
  static constexpr int kToken = -1;
  int text = kToken;  // 0 or 1: the first or the second text
  int32_t token = 0, type = 0;
};

struct PostProcessor {
  std::vector<int32_t> before, after;  // of a single text
  std::vector<InputPiece> pair;        // two texts
  // Each entry trims the white space at the ends of tokens' offsets once. True (add_prefix_space):
  // a single space before the first token may not belong to the text, and is kept.
  std::vector<bool> trims;

  // text_of: a token in the letters of byte_level.h; for an added token, the text that it
  // represents.
  void trim(std::span<Range> offsets, FunctionRef<std::string_view(size_t i)> text_of) const;
  // Throws Error if `pair` lacks a text.
  JoinedTexts join(std::span<const int32_t> first, std::span<const int32_t> second) const;
};

// Creates the "post_processor" of tokenizer.json: null, ByteLevel (only trims), TemplateProcessing,
// RobertaProcessing, BertProcessing, Sequence. Throws Error naming any other type.
PostProcessor make_post_processor(const Json& settings);

}  // namespace megatron::tokenizers
