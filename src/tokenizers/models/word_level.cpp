// Models over whole words: WordLevel looks up a piece; WordPiece (Schuster and Nakajima, 2012; Wu
// et al., 2016) splits it into the longest tokens from the left.
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/models/model.h"
#include "tokenizers/models/prefix_trie.h"

namespace megatron::tokenizers {
namespace {

int32_t unknown_of(const Definition& definition) {
  const Json* token = definition.member("model").find("unk_token");
  const std::string& text = token ? token->as_string() : "";
  return definition.vocabulary.find(text).value_or(-1);
}

void add_whole(std::string_view piece, int32_t id, std::vector<int32_t>& ids,
               std::vector<Range>* ranges) {
  MG_CHECK(id >= 0,
           "the model has no token for '{}', and its unk_token is not in the vocabulary: set it "
           "to one that is",
           piece);
  ids.push_back(id);
  if (ranges) ranges->push_back({0, static_cast<uint32_t>(piece.size())});
}

class WordLevel final : public Model {
 public:
  explicit WordLevel(const Definition& definition)
      : vocabulary_(definition.vocabulary), unknown_(unknown_of(definition)) {}

  void encode(std::string_view piece, Scratch&, std::vector<int32_t>& ids,
              std::vector<Range>* ranges) const override {
    add_whole(piece, vocabulary_.find(piece).value_or(unknown_), ids, ranges);
  }

 private:
  const Vocabulary& vocabulary_;
  int32_t unknown_;
};

class WordPiece final : public Model {
 public:
  explicit WordPiece(const Definition& definition)
      : trie_(definition.vocabulary), unknown_(unknown_of(definition)) {
    const Json& settings = definition.member("model");
    if (const Json* prefix = settings.find("continuing_subword_prefix"))
      prefix_ = prefix->as_string();
    if (const Json* limit = settings.find("max_input_chars_per_word")) limit_ = limit->as_integer();
    MG_CHECK(limit_ >= 0, "max_input_chars_per_word is {}; it cannot be negative", limit_);
  }

  void encode(std::string_view piece, Scratch&, std::vector<int32_t>& ids,
              std::vector<Range>* ranges) const override {
    const size_t ids_before = ids.size(), ranges_before = ranges ? ranges->size() : 0;
    if (count_characters(piece) <= limit_ && cut(piece, ids, ranges)) return;
    ids.resize(ids_before);
    if (ranges) ranges->resize(ranges_before);
    add_whole(piece, unknown_, ids, ranges);
  }

 private:
  // Returns false if the tokens do not cover the piece.
  bool cut(std::string_view piece, std::vector<int32_t>& ids, std::vector<Range>* ranges) const {
    constexpr size_t kSteps = 1 << 20, kStepsPerByte = 1024;
    size_t steps = 0;
    for (size_t begin = 0; begin < piece.size();) {
      const std::string_view prefix = begin > 0 ? std::string_view(prefix_) : "";
      int32_t longest = -1;
      size_t end = begin;
      steps += trie_.for_each_prefix(prefix, piece.substr(begin), [&](int32_t id, size_t size) {
        if (size <= prefix.size()) return;
        longest = id;
        end = begin + size - prefix.size();
      });
      MG_CHECK(steps <= kSteps + kStepsPerByte * piece.size(),
               "WordPiece: a word of {} bytes needs too many steps; lower "
               "max_input_chars_per_word, which is {}",
               piece.size(), limit_);
      if (longest < 0) return false;
      ids.push_back(longest);
      if (ranges) ranges->push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      begin = end;
    }
    return true;
  }

  PrefixTrie trie_;
  int32_t unknown_;
  std::string prefix_ = "##";
  int64_t limit_ = 100;
};

}  // namespace

std::unique_ptr<Model> make_word_level(const Definition& definition) {
  return std::make_unique<WordLevel>(definition);
}

std::unique_ptr<Model> make_word_piece(const Definition& definition) {
  return std::make_unique<WordPiece>(definition);
}

}  // namespace megatron::tokenizers
