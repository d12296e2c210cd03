// Normalisers: text to text, before anything is cut (save added tokens with normalized = false).
#pragma once

#include <memory>

#include "base/json.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // A text that is normal already is left as it stands, uncopied. Called by many threads at once.
  virtual void normalize(Text& text) const = 0;
};

// From "normalizer" of tokenizer.json: null (a null pointer), a Sequence, or one of
// normalizer_kinds.h. Throws Error naming any other type, and the bad field of a known one.
std::unique_ptr<Normalizer> make_normalizer(const Json& settings);

}  // namespace megatron::tokenizers
