#include "base/utf8.h"
#include "tokenizers/normalizers/character_edit.h"
#include "tokenizers/normalizers/normalizer_kinds.h"
#include "tokenizers/settings.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

constexpr CategorySet kControls =
    set_of(Category::Cc) | set_of(Category::Cf) | set_of(Category::Co);

bool is_chinese(char32_t c) {
  const auto between = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return between(0x4e00, 0x9fff) || between(0x3400, 0x4dbf) || between(0x20000, 0x2a6df) ||
         between(0x2a700, 0x2b73f) || between(0x2b740, 0x2b81f) || between(0x2b920, 0x2ceaf) ||
         between(0xf900, 0xfaff) || between(0x2f800, 0x2fa1f);
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c < 0x80) return c < 0x20 || c == 0x7f;
  return c == 0xfffd || (set_of(category_in_8(c)) & kControls) != 0;
}

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const Json& settings)
      : clean_text_(flag(settings, "clean_text", true)),
        spaces_round_chinese_(flag(settings, "handle_chinese_chars", true)) {
    const bool lowercase = flag(settings, "lowercase", true);
    const Json* strip = settings.find("strip_accents");
    const bool is_given = strip && !strip->is_null();
    if (is_given ? flag(settings, "strip_accents", lowercase) : lowercase)
      decomposition_ = make_normal_form(NormalForm::nfd);
    if (lowercase) lowercase_ = make_lowercase();
  }

  void normalize(Text& text) const override {
    // ASCII is lowercased in this pass, since decomposition does not affect it.
    bool is_ascii = true;
    edit_characters(text, [&](char32_t c, std::string& out) {
      if (c >= 0x80) is_ascii = false;
      return clean(c, out);
    });
    if (is_ascii) return;
    if (decomposition_) {
      decomposition_->normalize(text);
      edit_characters(text, [](char32_t c, std::string&) {
        return c >= 0x300 && category_in_8(c) == Category::Mn;
      });
    }
    if (lowercase_) lowercase_->normalize(text);
  }

 private:
  bool clean(char32_t c, std::string& out) const {
    if (clean_text_) {
      if (is_control(c)) return true;
      if (c != ' ' && is_white_space(c)) {
        out = ' ';
        return true;
      }
    }
    if (c < 0x80) {
      if (!lowercase_ || c < 'A' || c > 'Z') return false;
      out = static_cast<char>(c + ('a' - 'A'));
      return true;
    }
    if (!spaces_round_chinese_ || !is_chinese(c)) return false;
    out = ' ';
    append_character(c, out);
    out += ' ';
    return true;
  }

  bool clean_text_, spaces_round_chinese_;
  std::unique_ptr<Normalizer> decomposition_, lowercase_;  // null if disabled
};

}  // namespace

std::unique_ptr<Normalizer> make_bert_normalizer(const Json& settings) {
  return std::make_unique<BertNormalizer>(settings);
}

}  // namespace megatron::tokenizers
