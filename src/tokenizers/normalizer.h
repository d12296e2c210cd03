// Normalisers: text to text, before anything is cut (save added tokens with normalized = false).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"

namespace megatron::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // text: valid UTF-8. The result may be `text` itself, or stand in `buffer`.
  virtual std::string_view normalize(std::string_view text, std::string& buffer) const = 0;
};

// From "normalizer" of tokenizer.json: null (a null pointer), NFC, Sequence. Throws Error naming
// any other type.
std::unique_ptr<Normalizer> make_normalizer(const Json& settings);

}  // namespace megatron::tokenizers
