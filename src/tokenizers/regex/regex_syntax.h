// Parses regular expressions to a syntax tree: those with which tokenizers split text, and those of
// JSON schemas.
//
// In the syntax of Perl and Oniguruma it covers characters, classes (ranges, \s \S \w \W \d \D,
// \p{..},
// negation, nesting, &&), groups (plain, (?:..), (?i:..), (?>..), (?i) for the rest of a group),
// alternatives, the quantifiers ? * + {m} {m,} {,n} {m,n} (greedy and possessive), look-ahead
// (?=..) (?!..), and the anchors ^ $ \A \z. Captures are groups. Everything else (back-references,
// look-behind, lazy quantifiers, \b, ...) is left to PCRE2.
//
// In the syntax of ECMA-262 (with the flag u) it covers what a finite automaton reads: characters,
// '.', classes
// with ranges, the escapes \d \D \w \W \s \S \p{..} \P{..} \t \n \v \f \r \0 \cX \xHH \uHHHH (also
// in pairs) \u{H..} and those of punctuation, groups (plain, (?:..), (?<name>..)), alternatives,
// the quantifiers * + ? {m} {m,} {m,n} (also lazy, which changes no language), and ^ and $. \d and
// \w are those of ASCII.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/regex/regex.h"
#include "tokenizers/unicode/character_set.h"

namespace megatron::tokenizers {

struct RegexNode {
  enum class Kind {
    set,           // one character of `set`
    sequence,      // parts in sequence
    alternatives,  // the first part that matches; others are tried if the rest does not match
    repeat,        // parts[0], minimum to maximum times, as many as possible
    atomic,        // parts[0], without backtracking into it
    look_ahead,    // parts[0] matches here (negated: does not); consumes nothing
    text_begin,
    text_end,
    line_begin,
    line_end,
  };
  static constexpr uint32_t kEndless = 0xffffffff;

  Kind kind;
  CharacterSet set = {};
  std::vector<RegexNode> parts = {};
  uint32_t minimum = 0, maximum = 0;
  bool negated = false;
};

// Reason why a pattern is refused: it is malformed, or has a construct that is not listed above.
struct RegexRefusal {
  size_t at;  // byte offset in the pattern
  std::string reason;
};

// Parses a pattern in valid UTF-8. Counts are limited to 1000; groups are nested at most 50 deep,
// in ECMA-262 100. Throws RegexRefusal.
RegexNode parse_regex(std::string_view pattern, RegexSyntax syntax);

// Value of a hexadecimal digit; nullopt for any other character.
std::optional<char32_t> hexadecimal_digit(char32_t c);

}  // namespace megatron::tokenizers
