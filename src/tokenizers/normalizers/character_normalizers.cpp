#include "base/utf8.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/normalizers/character_edit.h"
#include "tokenizers/normalizers/normalizer_kinds.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

class Lowercase final : public Normalizer {
 public:
  void normalize(Text& text) const override {
    edit_characters(text, [](char32_t c, std::string& out) {
      if (lowercase(c) == c) return false;
      append_lowercase(c, out);
      return true;
    });
  }
};

class StripAccents final : public Normalizer {
 public:
  void normalize(Text& text) const override {
    edit_characters(text, [](char32_t c, std::string&) { return c >= 0x300 && is_mark_in_9(c); });
  }
};

// Like the SentencePiece rule of this name (NMT: neural machine translation), without its NFKC.
class Nmt final : public Normalizer {
 public:
  void normalize(Text& text) const override {
    edit_characters(text, [](char32_t c, std::string& out) {
      if (is_dropped(c)) return true;
      if (!is_space(c)) return false;
      out = ' ';
      return true;
    });
  }

 private:
  static bool is_dropped(char32_t c) {
    return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
           c == 0x9f;
  }
  static bool is_space(char32_t c) {
    switch (c) {
      case '\t':
      case '\n':
      case '\f':
      case '\r':
      case 0x1680:
      case 0x2028:
      case 0x2029:
      case 0x2581:
      case 0xfeff:
      case 0xfffd: return true;
      default: return c >= 0x200b && c <= 0x200f;
    }
  }
};

class ByteLetters final : public Normalizer {
 public:
  void normalize(Text& text) const override {
    edit_characters(text, [](char32_t c, std::string& out) {
      if (c < 0x80 && kByteLetters[c] == c) return false;
      std::string bytes;
      append_character(c, bytes);
      out = letters_of_bytes(bytes);
      return true;
    });
  }
};

}  // namespace

std::unique_ptr<Normalizer> make_lowercase() { return std::make_unique<Lowercase>(); }
std::unique_ptr<Normalizer> make_strip_accents() { return std::make_unique<StripAccents>(); }
std::unique_ptr<Normalizer> make_nmt() { return std::make_unique<Nmt>(); }
std::unique_ptr<Normalizer> make_byte_level_letters() { return std::make_unique<ByteLetters>(); }

}  // namespace megatron::tokenizers
