#include "tokenizers/pre_tokenizers/pre_tokenizer_kinds.h"
#include "tokenizers/pre_tokenizers/spans.h"
#include "tokenizers/settings.h"

namespace megatron::tokenizers {
namespace {

class SplitRegex final : public PreTokenizer {
 public:
  SplitRegex(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(TextView text, RegexScratch& scratch, EmitPiece emit) const override {
    SpanJoiner joiner(behavior_, text, emit);
    for_each_span(regex_, text.bytes, scratch, [&](Span span) {
      span.match = span.match != invert_;
      joiner.add(span);
    });
    joiner.finish();
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class SplitText final : public PreTokenizer {
 public:
  SplitText(std::string pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(TextView text, RegexScratch&, EmitPiece emit) const override {
    SpanJoiner joiner(behavior_, text, emit);
    for_each_span(pattern_, text.bytes, [&](Span span) {
      span.match = span.match != invert_;
      joiner.add(span);
    });
    joiner.finish();
  }

 private:
  std::string pattern_;
  Behavior behavior_;
  bool invert_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_split(const Json& settings) {
  Pattern pattern = pattern_field(settings);
  const Behavior behavior = parse_behavior(text_field(settings, "behavior"));
  const bool invert = flag(settings, "invert", false);
  if (pattern.plain) return std::make_unique<SplitText>(std::move(pattern.text), behavior, invert);
  return std::make_unique<SplitRegex>(Regex(pattern.text), behavior, invert);
}

std::unique_ptr<PreTokenizer> make_character_split(const Json& settings) {
  return std::make_unique<SplitText>(character_field(settings, "delimiter"), Behavior::removed,
                                     false);
}

}  // namespace megatron::tokenizers
