#include <unicode/uscript.h>

#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer_kinds.h"
#include "tokenizers/pre_tokenizers/spans.h"
#include "tokenizers/settings.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

enum class Kind : uint8_t { space, word, other };

Kind kind_of(char32_t c) {
  return is_white_space(c) ? Kind::space : is_word_character(c) ? Kind::word : Kind::other;
}

bool is_cut_as_punctuation(char32_t c) {
  if (c >= 0x80) return (set_of(category_in_8(c)) & kPunctuation) != 0;
  return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
         (c > 'z' && c < 0x7f);
}

// Digits uses the numbers of Unicode 17, which additionally has these.
bool is_cut_as_digit(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_number(c) || (c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6);
}

// Runs of characters of one kind; white space is dropped.
class Whitespace final : public PreTokenizer {
 public:
  Whitespace() {
    for (size_t c = 0; c < ascii_.size(); ++c) ascii_[c] = kind_of(static_cast<char32_t>(c));
  }

  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    const std::string_view bytes = text.bytes;
    size_t begin = 0;
    Kind run = Kind::space;
    for (size_t i = 0; i < bytes.size();) {
      const auto size = static_cast<size_t>(character_size(bytes[i]));
      const Kind kind =
          size == 1 ? ascii_[static_cast<size_t>(bytes[i])] : kind_of(character_at(bytes, i));
      if (kind != run) {
        if (run != Kind::space) emit(text.part(begin, i));
        run = kind;
        begin = i;
      }
      i += size;
    }
    if (run != Kind::space) emit(text.part(begin, bytes.size()));
  }

 private:
  std::array<Kind, 128> ascii_;
};

// Splits at white space, which is dropped; with `punctuation`, each punctuation character is a
// piece.
class Words final : public PreTokenizer {
 public:
  explicit Words(bool punctuation) : punctuation_(punctuation) {
    for (size_t c = 0; c < ascii_.size(); ++c) ascii_[c] = part_of(static_cast<char32_t>(c));
  }

  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    const std::string_view bytes = text.bytes;
    size_t begin = 0;
    for (size_t i = 0; i < bytes.size();) {
      const auto size = static_cast<size_t>(character_size(bytes[i]));
      const Kind kind =
          size == 1 ? ascii_[static_cast<size_t>(bytes[i])] : part_of(character_at(bytes, i));
      if (kind != Kind::word) {
        if (begin < i) emit(text.part(begin, i));
        if (kind == Kind::other) emit(text.part(i, i + size));
        begin = i + size;
      }
      i += size;
    }
    if (begin < bytes.size()) emit(text.part(begin, bytes.size()));
  }

 private:
  // `other` is a piece of its own.
  Kind part_of(char32_t c) const {
    if (is_white_space(c)) return Kind::space;
    return punctuation_ && is_cut_as_punctuation(c) ? Kind::other : Kind::word;
  }

  bool punctuation_;
  std::array<Kind, 128> ascii_;
};

class ClassSplit final : public PreTokenizer {
 public:
  ClassSplit(bool (*is_match)(char32_t), Behavior behavior)
      : is_match_(is_match), behavior_(behavior) {}

  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    SpanJoiner joiner(behavior_, text, emit);
    for_each_character_span(text.bytes, is_match_, [&](Span span) { joiner.add(span); });
    joiner.finish();
  }

 private:
  bool (*is_match_)(char32_t);
  Behavior behavior_;
};

constexpr UScriptCode kAnyScript = USCRIPT_INVALID_CODE;

UScriptCode script_of(char32_t c) {
  if (c == ' ' || !is_assigned_in(c, 9)) return kAnyScript;
  switch (c) {  // characters whose script has changed since
    case 0x589:
    case 0x61c: return USCRIPT_COMMON;
    case 0x953:
    case 0x954: return USCRIPT_DEVANAGARI;
    default: break;
  }
  UErrorCode status = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(c), &status);
  if (script == USCRIPT_UNKNOWN) return kAnyScript;
  if (c == 0x30fc || script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA) return USCRIPT_HAN;
  return script;
}

class UnicodeScripts final : public PreTokenizer {
 public:
  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    const std::string_view bytes = text.bytes;
    size_t begin = 0;
    UScriptCode run = kAnyScript;
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(character_size(bytes[i]))) {
      const UScriptCode script = script_of(character_at(bytes, i));
      if (script == kAnyScript || script == run) continue;
      if (run != kAnyScript) emit(text.part(begin, i));
      run = script;
      begin = i;
    }
    if (run != kAnyScript) emit(text.part(begin, bytes.size()));
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}

  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    const std::string_view bytes = text.bytes;
    size_t begin = 0;
    int64_t count = 0;
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(character_size(bytes[i]))) {
      if (count++ < length_) continue;
      emit(text.part(begin, i));
      begin = i;
      count = 1;
    }
    emit(text.part(begin, bytes.size()));
  }

 private:
  int64_t length_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_whitespace() { return std::make_unique<Whitespace>(); }
std::unique_ptr<PreTokenizer> make_whitespace_split() { return std::make_unique<Words>(false); }
std::unique_ptr<PreTokenizer> make_bert() { return std::make_unique<Words>(true); }

std::unique_ptr<PreTokenizer> make_punctuation(const Json& settings) {
  const Behavior behavior = settings.contains("behavior")
                                ? parse_behavior(text_field(settings, "behavior"))
                                : Behavior::isolated;
  return std::make_unique<ClassSplit>(is_cut_as_punctuation, behavior);
}

std::unique_ptr<PreTokenizer> make_digits(const Json& settings) {
  const bool individual = flag(settings, "individual_digits", false);
  return std::make_unique<ClassSplit>(is_cut_as_digit,
                                      individual ? Behavior::isolated : Behavior::contiguous);
}

std::unique_ptr<PreTokenizer> make_unicode_scripts() { return std::make_unique<UnicodeScripts>(); }

std::unique_ptr<PreTokenizer> make_fixed_length(const Json& settings) {
  const Json* length = settings.find("length");
  MG_CHECK(!length || (length->is_integer() && length->as_integer() >= 1),
           "FixedLength: 'length' is {}; it must be at least 1", length->dump());
  return std::make_unique<FixedLength>(length ? length->as_integer() : 5);
}

}  // namespace megatron::tokenizers
