// The unigram language model (Kudo, 2018): finds the segmentation of a piece into tokens with the
// largest sum of scores, by Viterbi's algorithm.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/limits.h"
#include "tokenizers/models/model.h"
#include "tokenizers/models/prefix_trie.h"

namespace megatron::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score of the vocabulary

class Unigram final : public Model {
 public:
  explicit Unigram(const Definition& definition)
      : vocabulary_(definition.vocabulary), scores_(definition.scores), trie_(vocabulary_) {
    const Json& settings = definition.member("model");
    if (const Json* id = settings.find("unk_id"); id && !id->is_null()) {
      MG_CHECK(id->as_integer() >= 0 && id->as_integer() < vocabulary_.size(),
               "unk_id is {}; the vocabulary has ids 0 to {}", id->as_integer(),
               vocabulary_.size() - 1);
      unknown_ = static_cast<int32_t>(id->as_integer());
    }
    const Json* fallback = settings.find("byte_fallback");
    byte_fallback_ = fallback && !fallback->is_null() && fallback->as_bool();
    MG_CHECK(!scores_.empty(), "the vocabulary is empty");
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      MG_CHECK(vocabulary_.text(id).size() <= kLongestToken,
               "token {} of the vocabulary has {} bytes; the limit is {}", id,
               vocabulary_.text(id).size(), kLongestToken);
    }
    for (const double score : scores_)
      MG_CHECK(std::isfinite(score), "a token has the score {}; scores must be finite", score);
    unknown_score_ = *std::ranges::min_element(scores_) - kUnknownPenalty;
    for (size_t b = 0; b < 256; ++b)
      bytes_[b] = vocabulary_.find(byte_token(static_cast<unsigned char>(b))).value_or(-1);
  }

  void encode(std::string_view piece, Scratch&, std::vector<int32_t>& ids,
              std::vector<Range>* ranges) const override {
    const std::vector<Node> best = search(piece);
    std::vector<Range> path;  // in reverse order
    bool unknown_behind = false;
    for (size_t end = piece.size(); end > 0;) {
      const Node& node = best[end];
      const Range range{node.begin, static_cast<uint32_t>(end)};
      const bool unknown = node.id == unknown_;
      if (unknown && unknown_behind) {
        path.back().begin = range.begin;
      } else {
        path.push_back(range);
      }
      unknown_behind = unknown;
      end = node.begin;
    }
    for (auto range = path.rbegin(); range != path.rend(); ++range)
      give_out(piece.substr(range->begin, range->end - range->begin), *range, ids, ranges);
  }

 private:
  struct Node {  // last token of the best path that ends at a byte
    double score = 0;
    int32_t id = -1;
    uint32_t begin = kNone;
  };
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  std::vector<Node> search(std::string_view piece) const {
    MG_CHECK(piece.size() < kNone, "a text of {} bytes is too long for Unigram; the limit is 4 GB",
             piece.size());
    std::vector<Node> best(piece.size() + 1);
    for (size_t at = 0; at < piece.size();) {
      const double score = best[at].score;
      const auto letter = static_cast<size_t>(character_size(piece[at]));
      bool has_letter = false;
      const auto offer = [&](int32_t id, size_t size, double candidate) {
        Node& node = best[at + size];
        if (node.begin == kNone || candidate > node.score)
          node = {candidate, id, static_cast<uint32_t>(at)};
      };
      trie_.for_each_prefix(piece.substr(at), [&](int32_t id, size_t size) {
        offer(id, size, score + scores_[static_cast<size_t>(id)]);
        has_letter |= size == letter;
      });
      if (!has_letter) {
        MG_CHECK(unknown_ >= 0, "the model has no token for '{}' and no unk_id",
                 piece.substr(at, letter));
        offer(unknown_, letter, score + unknown_score_);
      }
      at += letter;
    }
    return best;
  }

  void give_out(std::string_view text, Range range, std::vector<int32_t>& ids,
                std::vector<Range>* ranges) const {
    const auto add = [&](int32_t id) {
      ids.push_back(id);
      if (ranges) ranges->push_back(range);
    };
    if (const auto id = vocabulary_.find(text)) return add(*id);
    const auto byte_id = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
    if (byte_fallback_ && std::ranges::all_of(text, [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : text) add(byte_id(c));
      return;
    }
    add(unknown_);
  }

  const Vocabulary& vocabulary_;
  const std::vector<double>& scores_;
  PrefixTrie trie_;
  int32_t unknown_ = -1;
  bool byte_fallback_ = false;
  double unknown_score_ = 0;
  std::array<int32_t, 256> bytes_{};  // ids of <0xHH>; -1: none
};

}  // namespace

std::unique_ptr<Model> make_unigram(const Definition& definition) {
  return std::make_unique<Unigram>(definition);
}

}  // namespace megatron::tokenizers
