#include <optional>

#include "tokenizers/pre_tokenizers/pre_tokenizer_kinds.h"
#include "tokenizers/pre_tokenizers/spans.h"
#include "tokenizers/settings.h"

namespace megatron::tokenizers {
namespace {

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : text_(std::move(pattern.text)), behavior_(behavior), invert_(invert) {
    if (!pattern.plain) regex_.emplace(text_);
  }

  void split(TextView text, RegexScratch& scratch, EmitPiece emit) const override {
    SpanJoiner joiner(behavior_, text, emit);
    const auto add = [&](Span span) {
      span.match = span.match != invert_;
      joiner.add(span);
    };
    if (regex_) for_each_span(*regex_, text.bytes, scratch, add);
    else for_each_span(text_, text.bytes, add);
    joiner.finish();
  }

 private:
  std::string text_;
  std::optional<Regex> regex_;
  Behavior behavior_;
  bool invert_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_split(const Json& settings) {
  Pattern pattern = pattern_field(settings);
  const Behavior behavior = parse_behavior(text_field(settings, "behavior"));
  const bool invert = flag(settings, "invert", false);
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizer> make_character_split(const Json& settings) {
  return std::make_unique<Split>(Pattern{true, character_field(settings, "delimiter")},
                                 Behavior::removed, false);
}

}  // namespace megatron::tokenizers
