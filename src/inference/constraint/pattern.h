// Regular expressions of JSON schemas (ECMA-262 with the flag u), restricted to what a finite
// automaton can read: the syntax of tokenizers/regex/regex_syntax.h, with ^ and $ only at the ends.
#pragma once

#include <string_view>

#include "inference/constraint/character_graph.h"
#include "tokenizers/regex/regex_syntax.h"

namespace megatron::inference {

// Anchors are nodes text_begin and text_end. Throws Error naming the pattern, the position and the
// reason: look-around, back-references, word boundaries, flags, more than 10,000 bytes, counts
// above 1000, groups nested deeper than 100, or a malformed pattern.
tokenizers::RegexNode parse_pattern(std::string_view pattern);

enum class Matching : uint8_t {
  whole,   // the text is a match
  search,  // the text has a match somewhere
};

// Returns the texts that `pattern` matches. Throws Error as parse_pattern does, and for an anchor
// that is not at an end of the pattern or of one of its alternatives; throws GrammarLimit if the
// graph is too large.
CharacterGraph pattern_graph(std::string_view pattern, Matching matching);
void add_pattern(Network& network, int32_t from, int32_t to, std::string_view pattern,
                 Matching matching, Spelling spelling);

}  // namespace megatron::inference
