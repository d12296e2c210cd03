#include "tokenizers/models/model.h"

#include "tokenizers/byte_level.h"

namespace megatron::tokenizers {
namespace {

// Spells out byte-level pieces for a model that needs their letters.
class SpeltOut final : public Model {
 public:
  explicit SpeltOut(std::unique_ptr<Model> model) : model_(std::move(model)) {}

  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<Range>* ranges) const override {
    const std::string letters = letters_of_bytes(piece);
    const size_t before = ranges ? ranges->size() : 0;
    model_->encode(letters, scratch, ids, ranges);
    if (ranges) letters_to_bytes(piece, std::span(*ranges).subspan(before));
  }
  void finish(Scratch& scratch, std::vector<int32_t>& ids) const override {
    model_->finish(scratch, ids);
  }

 private:
  std::unique_ptr<Model> model_;
};

}  // namespace

std::unique_ptr<Model> make_model(const Definition& definition, bool byte_level) {
  if (definition.model == "BPE") return make_bpe(definition, byte_level);
  std::unique_ptr<Model> model = definition.model == "Unigram"     ? make_unigram(definition)
                                 : definition.model == "WordPiece" ? make_word_piece(definition)
                                                                   : make_word_level(definition);
  if (byte_level) return std::make_unique<SpeltOut>(std::move(model));
  return model;
}

}  // namespace megatron::tokenizers
