// Splits a text by matches: iterates over the matches and the gaps between them, and joins these to
// pieces.
#pragma once

#include <string>

#include "base/utf8.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "tokenizers/regex/regex.h"
#include "tokenizers/text.h"

namespace megatron::tokenizers {

struct Span {
  size_t begin, end;
  bool match;
};

// Calls f for the matches of `regex` and the gaps between them, in order. An empty match directly
// after another match is ignored.
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

// The same for plain text, which is not empty.
template <class F>
void for_each_span(std::string_view pattern, std::string_view text, F&& f) {
  size_t done = 0;
  for (size_t at; (at = text.find(pattern, done)) != std::string_view::npos;) {
    if (done < at) f(Span{done, at, false});
    done = at + pattern.size();
    f(Span{at, done, true});
  }
  if (done < text.size()) f(Span{done, text.size(), false});
}

// Calls f for each character for which `is_match` is true, and for the gaps between them.
template <class IsMatch, class F>
void for_each_character_span(std::string_view text, IsMatch&& is_match, F&& f) {
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const auto size = static_cast<size_t>(character_size(text[i]));
    if (is_match(size == 1 ? static_cast<char32_t>(text[i]) : character_at(text, i))) {
      if (done < i) f(Span{done, i, false});
      f(Span{i, i + size, true});
      done = i + size;
    }
    i += size;
  }
  if (done < text.size()) f(Span{done, text.size(), false});
}

// Treatment of a match: a piece of its own, dropped, part of the previous or the next piece, or one
// piece with adjacent matches.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// Parses a name of tokenizer.json. Throws Error naming any other.
Behavior parse_behavior(const std::string& name);

// Joins spans, given in order, to pieces.
class SpanJoiner {
 public:
  SpanJoiner(Behavior behavior, TextView text, EmitPiece emit)
      : behavior_(behavior), text_(text), emit_(emit) {}

  void add(Span span) {
    if (behavior_ == Behavior::isolated) return put(span);
    if (behavior_ == Behavior::removed) {
      if (!span.match) put(span);
      return;
    }
    if (holds_ && joins(span.match)) {
      held_.end = span.end;
    } else {
      finish();
      held_ = span;
      holds_ = true;
    }
    previous_ = span.match;
  }
  void finish() {
    if (holds_) put(held_);
    holds_ = false;
  }

 private:
  void put(Span span) {
    if (span.begin < span.end) emit_(text_.part(span.begin, span.end));
  }
  bool joins(bool match) const {
    switch (behavior_) {
      case Behavior::merged_with_previous: return match && !previous_;
      case Behavior::merged_with_next: return previous_ && !match;
      default: return match == previous_;
    }
  }

  Behavior behavior_;
  TextView text_;
  EmitPiece emit_;
  Span held_{};
  bool holds_ = false;
  bool previous_ = false;  // whether the previous span was a match
};

}  // namespace megatron::tokenizers
