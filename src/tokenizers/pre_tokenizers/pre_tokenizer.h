// Pre-tokenizers split a text into pieces; the model then encodes each piece by itself. Pieces are
// streamed to a callback, so memory does not grow with the text.
#pragma once

#include <memory>

#include "base/function_ref.h"
#include "base/json.h"
#include "tokenizers/regex/regex.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

// The piece is valid only during the call.
using EmitPiece = FunctionRef<void(TextView piece)>;

// Split patterns of model families. ByteLevel with use_regex uses GPT-2's.
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;  // up to three digits per piece
extern const char* const kQwen2Pattern;   // one digit per piece

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // text: not empty. Pieces are not empty and come in order.
  virtual void split(TextView text, RegexScratch& scratch, EmitPiece emit) const = 0;
  // True if a piece represents its bytes written in the letters of byte_level.h. (The letters are
  // never spelt out: the model looks up bytes instead.)
  virtual bool byte_level() const { return false; }
};

// Creates the "pre_tokenizer" of tokenizer.json: null (a null pointer), a Sequence, or one of
// pre_tokenizer_kinds.h. Throws Error naming any other type, or the invalid field of a known one.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& settings);

}  // namespace megatron::tokenizers
