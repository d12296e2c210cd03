#include <optional>

#include "tokenizers/normalizers/normalizer_kinds.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer_kinds.h"
#include "tokenizers/pre_tokenizers/spans.h"
#include "tokenizers/settings.h"

namespace megatron::tokenizers {

const char* const kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char* const kLlama3Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char* const kQwen2Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

namespace {

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, bool spelt)
      : add_prefix_space_(add_prefix_space) {
    if (use_regex) regex_.emplace(kGpt2Pattern);
    if (spelt) letters_ = make_byte_level_letters();
  }

  void split(TextView text, RegexScratch& scratch, EmitPiece emit) const override {
    if (!letters_) return cut(text, scratch, emit);
    cut(text, scratch, [&](TextView piece) {
      Text letters(piece);
      letters_->normalize(letters);
      emit(letters.view());
    });
  }
  bool byte_level() const override { return !letters_; }

 private:
  void cut(TextView text, RegexScratch& scratch, EmitPiece emit) const {
    if (!add_prefix_space_ || text.bytes.front() == ' ') return match(text, scratch, emit);
    Text longer(text);
    prepend(longer, " ");
    match(longer.view(), scratch, emit);
  }
  void match(TextView text, RegexScratch& scratch, EmitPiece emit) const {
    if (!regex_) return emit(text);
    for_each_span(*regex_, text.bytes, scratch,
                  [&](Span span) { emit(text.part(span.begin, span.end)); });
  }

  bool add_prefix_space_;
  std::optional<Regex> regex_;
  std::unique_ptr<Normalizer> letters_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_byte_level(const Json& settings, bool spelt) {
  return std::make_unique<ByteLevel>(flag(settings, "add_prefix_space", true),
                                     flag(settings, "use_regex", true), spelt);
}

}  // namespace megatron::tokenizers
