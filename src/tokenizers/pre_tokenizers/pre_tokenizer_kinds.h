// Factories for each kind of pre-tokenizer, from its settings in tokenizer.json. They throw Error
// naming an invalid field.
#pragma once

#include <memory>

#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

namespace megatron::tokenizers {

// Split: pattern (String or Regex), behavior, invert.
std::unique_ptr<PreTokenizer> make_split(const Json& settings);

// ByteLevel: add_prefix_space, use_regex (GPT-2's). spelt: pieces are written in the letters of
// byte_level.h, for the following steps; otherwise they are the bytes.
std::unique_ptr<PreTokenizer> make_byte_level(const Json& settings, bool spelt);

// Metaspace: each space becomes `replacement`, which is also prepended to the text unless it begins
// with it (prepend_scheme: always; first: only at the start of the input; never). split: a piece
// begins at each replacement.
std::unique_ptr<PreTokenizer> make_metaspace(const Json& settings);

// Splitting by character classes. White space is the property White_Space; punctuation is that of
// ASCII, including symbols, and category P of Unicode 8.
std::unique_ptr<PreTokenizer> make_whitespace();        // \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_whitespace_split();  // splits at white space, which is dropped
std::unique_ptr<PreTokenizer> make_bert();  // ... and makes each punctuation character a piece
std::unique_ptr<PreTokenizer> make_punctuation(const Json& settings);      // behavior
std::unique_ptr<PreTokenizer> make_digits(const Json& settings);           // individual_digits
std::unique_ptr<PreTokenizer> make_character_split(const Json& settings);  // delimiter

// Splits into runs of one script of Unicode 9, where Hiragana and Katakana count as Han; spaces and
// characters without a script belong to the preceding run, and are dropped at the beginning.
std::unique_ptr<PreTokenizer> make_unicode_scripts();

// FixedLength: pieces of `length` characters.
std::unique_ptr<PreTokenizer> make_fixed_length(const Json& settings);

}  // namespace megatron::tokenizers
