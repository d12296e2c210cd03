#include <array>
#include <optional>

#include "base/utf8.h"
#include "tokenizers/limits.h"
#include "tokenizers/normalizers/character_map.h"
#include "tokenizers/normalizers/normalizer_kinds.h"
#include "tokenizers/settings.h"
#include "tokenizers/unicode/grapheme.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kWholeCluster = 6;  // clusters of fewer bytes are looked up as a whole

// Writes the new text with Hugging Face's alignment: the replacement's characters take the places
// of the old ones, further ones are inserted, and surplus old characters are dropped after the last
// one written. Characters dropped at the beginning of the text are forgotten, so that everything
// after them is aligned to text that many characters earlier.
class MappedText {
 public:
  explicit MappedText(Text& text) : edit_(text), bytes_(text.bytes()) {}
  ~MappedText() { flush(); }
  MappedText(const MappedText&) = delete;

  void keep(size_t begin, size_t end) {
    if (begin == end) return;
    flush();
    if (edit_.position() == begin) {
      edit_.keep(end - begin);
    } else {
      for (; begin < end; begin += static_cast<size_t>(character_size(bytes_[begin])))
        edit_.write(character_at(bytes_, begin), 0);
    }
    any_ = true;
  }

  void replace(std::string_view old, std::string_view replacement) {
    const int old_count = static_cast<int>(count_characters(old));
    if (replacement.empty()) return drop(old_count);
    flush();
    const int growth = static_cast<int>(count_characters(replacement)) - old_count;
    int left = old_count + growth;
    for (size_t i = 0; i < replacement.size();
         i += static_cast<size_t>(character_size(replacement[i]))) {
      const char32_t c = character_at(replacement, i);
      if (left <= growth) {
        flush();
        inserted_ = c;
      } else {
        edit_.write(c, left == 1 && growth < 0 ? growth : 0);
      }
      --left;
    }
    any_ = true;
  }

 private:
  void drop(int count) {
    if (inserted_) {
      edit_.write(*inserted_, 1 - count);
      inserted_.reset();
    } else if (any_) {
      for (; count > 0 && !edit_.at_end(); --count)
        edit_.skip(static_cast<size_t>(character_size(edit_.remaining()[0])));
    }
  }
  void flush() {
    if (inserted_) edit_.write(*inserted_, 1);
    inserted_.reset();
  }

  TextEdit edit_;
  std::string_view bytes_;
  bool any_ = false;                  // whether anything was written
  std::optional<char32_t> inserted_;  // written once it is certain that nothing is dropped after it
};

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(CharacterMap map) : map_(std::move(map)) {
    for (size_t c = 0; c < plain_.size(); ++c) {
      const char letter = static_cast<char>(c);
      plain_[c] = c != '\r' && !map_.find_shortest({&letter, 1});
    }
  }

  void normalize(Text& text) const override {
    const std::string_view bytes = text.bytes();
    std::optional<MappedText> mapped;
    size_t kept = 0;  // end of the text written so far
    size_t inserted = 0;
    const size_t before = bytes.size();
    const auto look_up = [&](size_t begin, size_t end) {
      const auto replacement = map_.find_shortest(bytes.substr(begin, end - begin));
      if (!replacement) return false;
      check_growth(inserted += replacement->size(), before, "the normalizer Precompiled");
      if (!mapped) mapped.emplace(text);
      mapped->keep(kept, begin);
      mapped->replace(bytes.substr(begin, end - begin), *replacement);
      kept = end;
      return true;
    };
    for (size_t i = 0; i < bytes.size();) {
      if (is_plain(bytes, i)) {
        ++i;
        continue;
      }
      const size_t end = grapheme_end(bytes, i);
      if (end - i < kWholeCluster && look_up(i, end)) {
        i = end;
        continue;
      }
      while (i < end) {
        const size_t next = i + static_cast<size_t>(character_size(bytes[i]));
        look_up(i, next);
        i = next;
      }
    }
    if (mapped) mapped->keep(kept, bytes.size());
  }

 private:
  // True for a character that is a cluster by itself and that the map does not contain.
  bool is_plain(std::string_view bytes, size_t i) const {
    const auto is_ascii = [&](size_t k) { return static_cast<unsigned char>(bytes[k]) < 0x80; };
    return is_ascii(i) && plain_[static_cast<unsigned char>(bytes[i])] &&
           (i + 1 == bytes.size() || is_ascii(i + 1));
  }

  CharacterMap map_;
  std::array<bool, 128> plain_{};
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(const Json& settings) {
  return std::make_unique<Precompiled>(CharacterMap(text_field(settings, "precompiled_charsmap")));
}

}  // namespace megatron::tokenizers
