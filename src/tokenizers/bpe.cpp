// Byte-pair encoding (Sennrich et al., 2016) over bytes (Radford et al., 2019): of all neighbours
// that have a merge, the one of lowest rank is joined, the leftmost of equals, until none is left.
#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "base/error.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/model.h"
#include "tokenizers/pair_map.h"
#include "tokenizers/utf8.h"

namespace megatron::tokenizers {
namespace {

constexpr int64_t kNoMerge = std::numeric_limits<int64_t>::max();
constexpr size_t kShort = 48;  // up to here a scan of all neighbours beats a queue

int32_t id_of(int64_t merge) { return static_cast<int32_t>(merge & 0xffffffff); }

class Bpe final : public Model {
 public:
  explicit Bpe(const Definition& definition)
      : vocabulary_(definition.vocabulary), merges_(definition.merges.size()) {
    const Json& settings = definition.member("model");
    read_settings(settings);
    for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
      const uint64_t pair = definition.merges[rank];
      const std::string joined =
          std::string(vocabulary_.text(left_of(pair))).append(vocabulary_.text(right_of(pair)));
      merges_[pair] = static_cast<int64_t>(rank) << 32 | vocabulary_.find(joined).value();
    }
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override {
    if (piece.size() > WordCache::kMaximumBytes) return merge(piece, scratch, ids);
    WordCache::Entry& entry = scratch.words.entry(piece);
    if (!WordCache::holds(entry, piece)) {
      const size_t before = ids.size();
      merge(piece, scratch, ids);
      return WordCache::fill(entry, piece, std::span(ids).subspan(before));
    }
    if (entry.count == 1) return ids.push_back(entry.ids[0]);
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
  }

 private:
  void read_settings(const Json& settings);
  void read_bytes(bool byte_fallback);

  int64_t merge_of(int32_t left, int32_t right) const {
    const int64_t* found = merges_.find(left, right);
    return found ? *found : kNoMerge;
  }
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  const Vocabulary& vocabulary_;
  PairMap merges_;                           // rank << 32 | id of the two joined
  std::array<int32_t, 256> byte_symbols_{};  // -1: the vocabulary lacks the byte's letter
  int32_t unknown_ = -1;
  std::vector<bool> own_;  // with ignore_merges: by id; added tokens join the vocabulary later
  bool fuse_unknown_ = false, ignore_merges_ = false;
};

void Bpe::read_settings(const Json& settings) {
  const auto text = [&](std::string_view key) {
    const Json* value = settings.find(key);
    return value && !value->is_null() ? value->as_string() : std::string();
  };
  const auto flag = [&](std::string_view key) {
    const Json* value = settings.find(key);
    return value && !value->is_null() && value->as_bool();
  };
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    MG_CHECK(text(key).empty(), "BPE with {} '{}' is not supported; supported is none", key,
             text(key));
  }
  const Json* dropout = settings.find("dropout");
  MG_CHECK(!dropout || dropout->is_null() || dropout->as_number() == 0,
           "BPE with dropout is not supported; set it to null");
  fuse_unknown_ = flag("fuse_unk");
  ignore_merges_ = flag("ignore_merges");
  unknown_ = text("unk_token").empty() ? -1 : vocabulary_.find(text("unk_token")).value_or(-1);
  if (ignore_merges_) {
    own_.resize(static_cast<size_t>(Vocabulary::kMaximumId) + 1);
    for (int32_t id = 0; id < vocabulary_.size(); ++id)
      own_[static_cast<size_t>(id)] = vocabulary_.contains(id);
  }
  read_bytes(flag("byte_fallback"));
}

void Bpe::read_bytes(bool byte_fallback) {
  for (size_t b = 0; b < 256; ++b) {
    std::string letter;
    append_character(kByteLetters[b], letter);
    byte_symbols_[b] = vocabulary_.find(letter).value_or(-1);
    MG_CHECK(byte_symbols_[b] >= 0 || !byte_fallback,
             "BPE with byte_fallback is supported only where the vocabulary has all 256 byte "
             "letters; it lacks '{}'",
             letter);
  }
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const auto whole = vocabulary_.find(letters_of_bytes(piece));
    if (whole && own_[static_cast<size_t>(*whole)]) return ids.push_back(*whole);
  }
  scratch.symbols.clear();
  bool was_unknown = false;
  for (const char c : piece) {
    const int32_t symbol = byte_symbols_[static_cast<unsigned char>(c)];
    if (symbol >= 0) {
      scratch.symbols.push_back(symbol);
    } else if (unknown_ >= 0 && !(was_unknown && fuse_unknown_)) {
      scratch.symbols.push_back(unknown_);
    }
    was_unknown = symbol < 0;
  }
  if (scratch.symbols.size() > kShort) {
    merge_long(scratch);
  } else if (scratch.symbols.size() > 1) {
    merge_short(scratch);
  }
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void Bpe::merge_short(Scratch& scratch) const {
  std::array<int64_t, kShort> merges;
  int32_t* symbols = scratch.symbols.data();
  size_t n = scratch.symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i] >> 32 < merges[best] >> 32) best = i;
    }
    if (merges[best] == kNoMerge) break;
    symbols[best] = id_of(merges[best]);
    --n;
    std::copy(symbols + best + 2, symbols + n + 1, symbols + best + 1);
    std::copy(merges.data() + best + 1, merges.data() + n, merges.data() + best);
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = merge_of(symbols[best], symbols[best + 1]);
  }
  scratch.symbols.resize(n);
}

// A queue of (merge, position). An entry counts only while its merge is still the one at that
// position.
void Bpe::merge_long(Scratch& scratch) const {
  struct Candidate {
    int64_t merge;
    size_t position;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    const int64_t left = a.merge >> 32, right = b.merge >> 32;
    return left != right ? left > right : a.position > b.position;
  };
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<int64_t>& merges = scratch.merges;
  const size_t n = symbols.size();
  std::vector<size_t> next(n), previous(n);
  std::vector<Candidate> queue;
  merges.assign(n, kNoMerge);
  for (size_t i = 0; i < n; ++i) {
    next[i] = i + 1, previous[i] = i - 1;
    if (i + 1 == n) break;
    merges[i] = merge_of(symbols[i], symbols[i + 1]);
    if (merges[i] != kNoMerge) queue.push_back({merges[i], i});
  }
  std::make_heap(queue.begin(), queue.end(), later);
  const auto renew = [&](size_t i) {
    merges[i] = next[i] < n ? merge_of(symbols[i], symbols[next[i]]) : kNoMerge;
    if (merges[i] == kNoMerge) return;
    queue.push_back({merges[i], i});
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const Candidate top = queue.back();
    queue.pop_back();
    const size_t i = top.position;
    if (merges[i] != top.merge) continue;
    const size_t gone = next[i];
    symbols[i] = id_of(top.merge);
    symbols[gone] = -1;
    merges[gone] = kNoMerge;
    next[i] = next[gone];
    if (next[i] < n) previous[next[i]] = i;
    renew(i);
    if (i > 0) renew(previous[i]);
  }
  std::erase(symbols, -1);
}

}  // namespace

std::unique_ptr<Model> make_model(const Definition& definition, bool byte_level) {
  MG_CHECK(byte_level,
           "a BPE model without a ByteLevel pre-tokenizer is not supported; supported is "
           "byte-level BPE");
  return std::make_unique<Bpe>(definition);
}

}  // namespace megatron::tokenizers
