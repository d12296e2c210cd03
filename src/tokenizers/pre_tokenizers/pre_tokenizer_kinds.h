// The kinds of pre-tokenizers, each from its settings in tokenizer.json. They throw Error naming a
// bad field.
#pragma once

#include <memory>

#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

namespace megatron::tokenizers {

// Split: pattern (String or Regex), behavior, invert.
std::unique_ptr<PreTokenizer> make_split(const Json& settings);

// ByteLevel: add_prefix_space, use_regex (GPT-2's). spelt: pieces are written in the letters of
// byte_level.h, for steps behind this one; otherwise they are the bytes.
std::unique_ptr<PreTokenizer> make_byte_level(const Json& settings, bool spelt);

// Metaspace: each space becomes `replacement`, which is put before the text unless it begins with
// it (prepend_scheme always, first: where the input begins, never); split: a piece begins at each.
std::unique_ptr<PreTokenizer> make_metaspace(const Json& settings);

// By classes of characters. White space is the property White_Space; punctuation is that of ASCII,
// symbols included, and category P of Unicode 8.
std::unique_ptr<PreTokenizer> make_whitespace();        // \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_whitespace_split();  // cuts at white space, which is dropped
std::unique_ptr<PreTokenizer> make_bert();              // ... and each punctuation is a piece
std::unique_ptr<PreTokenizer> make_punctuation(const Json& settings);      // behavior
std::unique_ptr<PreTokenizer> make_digits(const Json& settings);           // individual_digits
std::unique_ptr<PreTokenizer> make_character_split(const Json& settings);  // delimiter

// Runs of one script of Unicode 9, Hiragana and Katakana counting as Han; spaces and characters
// without script belong to the run before them, and are dropped at the begin.
std::unique_ptr<PreTokenizer> make_unicode_scripts();

// FixedLength: `length` characters a piece.
std::unique_ptr<PreTokenizer> make_fixed_length(const Json& settings);

}  // namespace megatron::tokenizers
