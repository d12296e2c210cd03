// Byte-pair encoding of a piece: its letters become symbols, and the merges join them. Byte-level
// pieces stand for their bytes written in the letters of byte_level.h (Radford et al., 2019).
#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/models/bpe_merges.h"
#include "tokenizers/models/model.h"

namespace megatron::tokenizers {
namespace {

// A letter without a token becomes the tokens <0xHH> of its bytes if all of them exist (with
// byte_fallback), else unk (one for a run of them, with fuse_unk), else nothing.
class Bpe final : public Model {
 public:
  Bpe(const Definition& definition, bool byte_level)
      : vocabulary_(definition.vocabulary), merges_(definition), byte_level_(byte_level) {
    read_settings(definition.member("model"));
    for (size_t b = 0; b < 256; ++b) {
      std::string letter;
      append_character(kByteLetters[b], letter);
      letters_[b] = vocabulary_.find(letter).value_or(-1);
      bytes_[b] = vocabulary_.find(byte_token(static_cast<unsigned char>(b))).value_or(-1);
    }
  }

  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
              std::vector<Range>* ranges) const override {
    if (ranges) return merge(piece, scratch, ids, ranges);
    if (scratch.words.keep(piece)) return;
    finish(scratch, ids);
    if (scratch.words.keep(piece) || scratch.words.find(piece, ids)) return;
    const size_t before = ids.size();
    merge(piece, scratch, ids, nullptr);
    scratch.words.put(piece, std::span(ids).subspan(before));
  }

  void finish(Scratch& scratch, std::vector<int32_t>& ids) const override {
    scratch.words.take(ids, [&](std::string_view word, std::vector<int32_t>& out) {
      merge(word, scratch, out, nullptr);
    });
  }

 private:
  // Symbols of a piece in the order in which they are found, and the range that each covers
  // (dropped letters shift what follows, as in the original).
  struct Symbols {
    std::vector<int32_t>& ids;
    std::vector<Range>* ranges;
    uint32_t end = 0;
    int32_t unknown = -1;       // pending unknown letters: their token,
    uint32_t unknown_size = 0;  // and number of bytes

    void add(int32_t id, uint32_t size) {
      ids.push_back(id);
      if (ranges) ranges->push_back({end, end + size});
      end += size;
    }
    void flush() {
      if (unknown >= 0) add(unknown, unknown_size);
      unknown = -1;
      unknown_size = 0;
    }
  };

  void read_settings(const Json& settings);
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
             std::vector<Range>* ranges) const;
  void find_bytes(std::string_view piece, Symbols& symbols) const;
  void find_letters(std::string_view text, Symbols& symbols) const;
  void add_letter(std::string_view letter, int32_t id, uint32_t size, Symbols& symbols) const;

  const Vocabulary& vocabulary_;
  BpeMerges merges_;
  bool byte_level_;
  std::array<int32_t, 256> letters_{}, bytes_{};  // ids of byte letters and of <0xHH>; -1: none
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false, ignore_merges_ = false, byte_fallback_ = false;
  std::string prefix_, suffix_;  // prefix of letters other than a piece's first; suffix of its last
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
  const Json* dropout = settings.find("dropout");
  MG_CHECK(!dropout || dropout->is_null() || dropout->as_number() == 0,
           "BPE with dropout is not supported; set it to null");
  prefix_ = text("continuing_subword_prefix");
  suffix_ = text("end_of_word_suffix");
  fuse_unknown_ = flag("fuse_unk");
  ignore_merges_ = flag("ignore_merges");
  byte_fallback_ = flag("byte_fallback");
  unknown_ = text("unk_token").empty() ? -1 : vocabulary_.find(text("unk_token")).value_or(-1);
}

// id: the letter's token, or -1 if it has none. size: number of bytes that it covers in the piece.
void Bpe::add_letter(std::string_view letter, int32_t id, uint32_t size, Symbols& symbols) const {
  if (id >= 0) {
    symbols.flush();
    return symbols.add(id, size);
  }
  const auto byte_id = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
  if (byte_fallback_ && std::ranges::all_of(letter, [&](char c) { return byte_id(c) >= 0; })) {
    symbols.flush();
    for (const char c : letter) symbols.add(byte_id(c), 1);
    return;
  }
  if (unknown_ < 0) return;
  if (!fuse_unknown_) symbols.flush();
  symbols.unknown = unknown_;
  symbols.unknown_size += size;
}

void Bpe::find_bytes(std::string_view piece, Symbols& symbols) const {
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    if (letters_[byte] >= 0 && symbols.unknown < 0) {
      symbols.add(letters_[byte], 1);
    } else {
      add_letter(letters_of_bytes({&c, 1}), letters_[byte], 1, symbols);
    }
  }
}

// text: the piece, or, of byte-level pieces, its letters.
void Bpe::find_letters(std::string_view text, Symbols& symbols) const {
  std::string letter;
  for (size_t i = 0; i < text.size();) {
    const auto size = static_cast<size_t>(character_size(text[i]));
    letter = i > 0 ? prefix_ : "";
    letter += text.substr(i, size);
    i += size;
    if (i == text.size()) letter += suffix_;
    add_letter(letter, vocabulary_.find(letter).value_or(-1), static_cast<uint32_t>(size), symbols);
  }
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids,
                std::vector<Range>* ranges) const {
  if (ignore_merges_) {
    const auto whole =
        byte_level_ ? vocabulary_.find(letters_of_bytes(piece)) : vocabulary_.find(piece);
    if (whole) {
      if (ranges) ranges->push_back({0, static_cast<uint32_t>(piece.size())});
      return ids.push_back(*whole);
    }
  }
  std::vector<Range> found;
  scratch.symbols.clear();
  Symbols symbols{scratch.symbols, ranges ? &found : nullptr};
  if (byte_level_ && prefix_.empty() && suffix_.empty() && !ranges) {
    find_bytes(piece, symbols);
  } else if (byte_level_) {
    find_letters(letters_of_bytes(piece), symbols);
  } else {
    find_letters(piece, symbols);
  }
  symbols.flush();
  merges_.apply(scratch, symbols.ranges);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
  if (!ranges) return;
  if (byte_level_) letters_to_bytes(piece, found);
  ranges->insert(ranges->end(), found.begin(), found.end());
}

}  // namespace

std::unique_ptr<Model> make_bpe(const Definition& definition, bool byte_level) {
  return std::make_unique<Bpe>(definition, byte_level);
}

}  // namespace megatron::tokenizers
