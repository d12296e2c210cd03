#include "tokenizers/pre_tokenizer.h"

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizers/utf8.h"

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

struct Span {
  size_t begin, end;
  bool match;
};

// The matches of `regex` and the gaps between them, in order. An empty match right behind another
// match is no match.
template <class F>
void for_each_span(const Regex& regex, std::string_view text, RegexScratch& scratch, F&& f) {
  size_t done = 0, from = 0;
  bool after_match = false;
  Regex::Match match;
  while (from <= text.size() && regex.find(text, from, match, scratch)) {
    if (match.begin == match.end) {
      if (!after_match || match.begin != done) {
        if (done < match.begin) f(Span{done, match.begin, false});
        f(Span{match.begin, match.end, true});
        done = match.end;
        after_match = true;
      }
      if (match.end == text.size()) break;
      from = match.end + static_cast<size_t>(character_size(text[match.end]));
      continue;
    }
    if (done < match.begin) f(Span{done, match.begin, false});
    f(Span{match.begin, match.end, true});
    done = from = match.end;
    after_match = true;
  }
  if (done < text.size()) f(Span{done, text.size(), false});
}

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior parse_behavior(const std::string& name) {
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail(
      "Split behavior '{}' is not known; known are Removed, Isolated, MergedWithPrevious, "
      "MergedWithNext and Contiguous",
      name);
}

class Split final : public PreTokenizer {
 public:
  Split(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, RegexScratch& scratch, EmitPiece emit) const override {
    const auto put = [&](size_t begin, size_t end) {
      if (begin < end) emit(text.substr(begin, end - begin));
    };
    if (behavior_ == Behavior::isolated) {
      return for_each_span(regex_, text, scratch, [&](Span span) { put(span.begin, span.end); });
    }
    if (behavior_ == Behavior::removed) {
      return for_each_span(regex_, text, scratch, [&](Span span) {
        if (span.match == invert_) put(span.begin, span.end);
      });
    }
    std::optional<Span> held;
    bool previous = false;  // whether the span before was a match
    for_each_span(regex_, text, scratch, [&](Span span) {
      span.match = span.match != invert_;
      if (held && joins(previous, span.match)) {
        held->end = span.end;
      } else {
        if (held) put(held->begin, held->end);
        held = span;
      }
      previous = span.match;
    });
    if (held) put(held->begin, held->end);
  }

 private:
  bool joins(bool previous, bool match) const {
    switch (behavior_) {
      case Behavior::merged_with_previous: return match && !previous;
      case Behavior::merged_with_next: return previous && !match;
      default: return match == previous;
    }
  }

  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) regex_.emplace(kGpt2Pattern);
  }

  void split(std::string_view text, RegexScratch& scratch, EmitPiece emit) const override {
    if (add_prefix_space_ && text.front() != ' ') {
      cut(std::string(" ").append(text), scratch, emit);
    } else {
      cut(text, scratch, emit);
    }
  }
  bool byte_level() const override { return true; }

 private:
  void cut(std::string_view text, RegexScratch& scratch, EmitPiece emit) const {
    if (!regex_) return emit(text);
    for_each_span(*regex_, text, scratch,
                  [&](Span span) { emit(text.substr(span.begin, span.end - span.begin)); });
  }

  bool add_prefix_space_;
  std::optional<Regex> regex_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  void split(std::string_view text, RegexScratch& scratch, EmitPiece emit) const override {
    run(0, text, scratch, emit);
  }
  bool byte_level() const override { return !steps_.empty() && steps_.back()->byte_level(); }

 private:
  void run(size_t step, std::string_view text, RegexScratch& scratch, EmitPiece emit) const {
    if (step == steps_.size()) return emit(text);
    if (step + 1 == steps_.size()) return steps_[step]->split(text, scratch, emit);
    steps_[step]->split(text, scratch,
                        [&](std::string_view piece) { run(step + 1, piece, scratch, emit); });
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

bool flag(const Json& settings, std::string_view key, bool otherwise) {
  const Json* value = settings.find(key);
  return value ? value->as_bool() : otherwise;
}

std::unique_ptr<PreTokenizer> make_split(const Json& settings) {
  const Json& pattern = settings["pattern"];
  const Json* literal = pattern.find("String");
  Regex regex(literal ? literal->as_string() : pattern["Regex"].as_string(), literal != nullptr);
  return std::make_unique<Split>(std::move(regex), parse_behavior(settings["behavior"].as_string()),
                                 flag(settings, "invert", false));
}

std::unique_ptr<PreTokenizer> make_sequence(const Json& settings) {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const Json& step : settings["pretokenizers"].as_array()) {
    MG_CHECK(steps.empty() || !steps.back()->byte_level(),
             "ByteLevel is supported only as the last pre-tokenizer of a Sequence");
    if (auto made = make_pre_tokenizer(step)) steps.push_back(std::move(made));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& settings) {
  if (settings.is_null()) return nullptr;
  const std::string& type = settings["type"].as_string();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(flag(settings, "add_prefix_space", true),
                                       flag(settings, "use_regex", true));
  }
  if (type == "Split") return make_split(settings);
  if (type == "Sequence") return make_sequence(settings);
  fail("pre-tokenizer '{}' is not supported; supported are ByteLevel, Split and Sequence", type);
}

}  // namespace megatron::tokenizers
