// Models turn a piece of text into token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tokenizers/definition.h"
#include "tokenizers/scratch.h"

namespace megatron::tokenizers {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `piece` (not empty). Called by many threads at once, each with its own
  // scratch.
  virtual void encode(std::string_view piece, Scratch& scratch,
                      std::vector<int32_t>& ids) const = 0;
};

// From the definition's model: BPE over bytes. byte_level: the pre-tokenizer's. Throws Error on
// settings that are not supported. The vocabulary must outlive the model.
std::unique_ptr<Model> make_model(const Definition& definition, bool byte_level);

}  // namespace megatron::tokenizers
