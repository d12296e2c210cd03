#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer_kinds.h"

namespace megatron::tokenizers {
namespace {

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  void split(TextView text, RegexScratch& scratch, EmitPiece emit) const override {
    run(0, text, scratch, emit);
  }
  bool byte_level() const override { return !steps_.empty() && steps_.back()->byte_level(); }

 private:
  void run(size_t step, TextView text, RegexScratch& scratch, EmitPiece emit) const {
    if (step == steps_.size()) return emit(text);
    if (step + 1 == steps_.size()) return steps_[step]->split(text, scratch, emit);
    steps_[step]->split(text, scratch,
                        [&](TextView piece) { run(step + 1, piece, scratch, emit); });
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

std::unique_ptr<PreTokenizer> make(const Json& settings, bool is_last);

// True if the settings contain any step.
bool does_something(const Json& settings) {
  if (settings.is_null()) return false;
  if (settings["type"].as_string() != "Sequence") return true;
  for (const Json& step : settings["pretokenizers"].as_array()) {
    if (does_something(step)) return true;
  }
  return false;
}

std::unique_ptr<PreTokenizer> make_sequence(const Json& settings, bool is_last) {
  std::vector<const Json*> parts;
  for (const Json& step : settings["pretokenizers"].as_array()) {
    if (does_something(step)) parts.push_back(&step);
  }
  constexpr auto kSpelling = 4;
  const auto spelling = std::ranges::count_if(
      parts, [](const Json* part) { return (*part)["type"].as_string() == "ByteLevel"; });
  MG_CHECK(spelling <= kSpelling,
           "pre_tokenizer: there are {} ByteLevel steps, each of which except the last doubles the "
           "text; the limit is {}",
           spelling, kSpelling);
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const Json* part : parts) steps.push_back(make(*part, is_last && part == parts.back()));
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

// is_last: no step follows.
std::unique_ptr<PreTokenizer> make(const Json& settings, bool is_last) {
  const std::string& type = settings["type"].as_string();
  if (type == "BertPreTokenizer") return make_bert();
  if (type == "ByteLevel") return make_byte_level(settings, !is_last);
  if (type == "CharDelimiterSplit") return make_character_split(settings);
  if (type == "Digits") return make_digits(settings);
  if (type == "FixedLength") return make_fixed_length(settings);
  if (type == "Metaspace") return make_metaspace(settings);
  if (type == "Punctuation") return make_punctuation(settings);
  if (type == "Sequence") return make_sequence(settings, is_last);
  if (type == "Split") return make_split(settings);
  if (type == "UnicodeScripts") return make_unicode_scripts();
  if (type == "Whitespace") return make_whitespace();
  if (type == "WhitespaceSplit") return make_whitespace_split();
  fail(
      "pre-tokenizer '{}' is unknown; supported are BertPreTokenizer, ByteLevel, "
      "CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation, Sequence, Split, "
      "UnicodeScripts, Whitespace and WhitespaceSplit",
      type);
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& settings) {
  return settings.is_null() ? nullptr : make(settings, true);
}

}  // namespace megatron::tokenizers
