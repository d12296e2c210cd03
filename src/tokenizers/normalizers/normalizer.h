// Normalizers transform the text before it is split, except for added tokens with normalized =
// false, which are split off first.
#pragma once

#include <memory>

#include "base/json.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Leaves a text that is already normal as it is, without a copy. Thread-safe.
  virtual void normalize(Text& text) const = 0;
};

// Creates the "normalizer" of tokenizer.json: null (a null pointer), a Sequence, or one of
// normalizer_kinds.h. Throws Error naming any other type, or the invalid field of a known one.
std::unique_ptr<Normalizer> make_normalizer(const Json& settings);

}  // namespace megatron::tokenizers
