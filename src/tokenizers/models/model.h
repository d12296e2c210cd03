// Models convert a piece of text to token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tokenizers/definition.h"
#include "tokenizers/models/scratch.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `piece` (not empty) and, unless `ranges` is null, the bytes of the piece
  // that each token covers. Called by many threads at once, each with its own scratch.
  virtual void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                      std::vector<Range>* ranges) const = 0;
  // Without ranges, a model may defer pieces in `scratch`: finish appends their ids. It must be
  // called before anything else is appended to `ids`.
  virtual void finish(Scratch&, std::vector<int32_t>&) const {}
};

// Creates the definition's model: BPE, Unigram, WordPiece or WordLevel. byte_level: value of the
// pre-tokenizer's byte_level(). Throws Error for unsupported settings. The definition must outlive
// the model; its vocabulary may grow by added tokens, which do not belong to the model.
std::unique_ptr<Model> make_model(const Definition& definition, bool byte_level);

std::unique_ptr<Model> make_bpe(const Definition& definition, bool byte_level);
std::unique_ptr<Model> make_unigram(const Definition& definition);
std::unique_ptr<Model> make_word_piece(const Definition& definition);
std::unique_ptr<Model> make_word_level(const Definition& definition);

}  // namespace megatron::tokenizers
