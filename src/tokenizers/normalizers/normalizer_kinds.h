// The kinds of normalisers, each from its settings. Those with settings of more than one field read
// them from tokenizer.json and throw Error naming a bad one.
#pragma once

#include <memory>

#include "tokenizers/normalizers/normalizer.h"

namespace megatron::tokenizers {

// The normal forms of the Unicode standard (annex 15), with the characters of Unicode 9: later ones
// are left as they stand and combine with nothing.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::unique_ptr<Normalizer> make_normal_form(NormalForm form);

// BertNormalizer (Devlin et al., 2019), with the character classes of Unicode 8: clean_text drops
// control characters and makes every white space a space; handle_chinese_chars puts spaces round
// each; strip_accents (null: as lowercase) decomposes and drops nonspacing marks; lowercase.
std::unique_ptr<Normalizer> make_bert_normalizer(const Json& settings);

// One character at a time.
std::unique_ptr<Normalizer> make_lowercase();           // no final sigma
std::unique_ptr<Normalizer> make_strip_accents();       // drops marks
std::unique_ptr<Normalizer> make_nmt();                 // controls dropped, odd spaces made spaces
std::unique_ptr<Normalizer> make_byte_level_letters();  // each byte's letter of byte_level.h

// Strip: white space at the left and the right end.
std::unique_ptr<Normalizer> make_strip(const Json& settings);
// Prepend: `prepend` before a text that is not empty.
std::unique_ptr<Normalizer> make_prepend(const Json& settings);
// Replace: `content` for each match of `pattern` (String or Regex).
std::unique_ptr<Normalizer> make_replace(const Json& settings);

// Precompiled: SentencePiece's character map (see character_map.h) as Hugging Face applies it. A
// grapheme cluster of less than 6 bytes is looked up whole, and what the shortest matching prefix
// gives replaces all of it; else each of its characters is looked up.
std::unique_ptr<Normalizer> make_precompiled(const Json& settings);

}  // namespace megatron::tokenizers
