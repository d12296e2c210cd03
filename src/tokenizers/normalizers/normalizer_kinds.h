// Factories for each kind of normalizer. Kinds with more than one setting read the JSON of
// tokenizer.json and throw Error naming an invalid field.
#pragma once

#include <memory>

#include "tokenizers/normalizers/normalizer.h"

namespace megatron::tokenizers {

// The normal forms of the Unicode standard (annex 15), with the characters of Unicode 9: later
// characters are left unchanged and combine with nothing.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::unique_ptr<Normalizer> make_normal_form(NormalForm form);

// BertNormalizer (Devlin et al., 2019), with the character classes of Unicode 8: clean_text drops
// control characters and converts all white space to spaces; handle_chinese_chars puts spaces
// around each Chinese character; strip_accents (null: same as lowercase) decomposes and drops
// nonspacing marks; lowercase.
std::unique_ptr<Normalizer> make_bert_normalizer(const Json& settings);

// Normalizers that process one character at a time.
std::unique_ptr<Normalizer> make_lowercase();      // without special case for final sigma
std::unique_ptr<Normalizer> make_strip_accents();  // drops marks
std::unique_ptr<Normalizer> make_nmt();  // drops control characters, replaces unusual spaces
// Replaces bytes by the letters of byte_level.h.
std::unique_ptr<Normalizer> make_byte_level_letters();

// Strip: removes white space at the left and the right end.
std::unique_ptr<Normalizer> make_strip(const Json& settings);
// Prepend: puts `prepend` before a text that is not empty.
std::unique_ptr<Normalizer> make_prepend(const Json& settings);
// Replace: substitutes `content` for each match of `pattern` (String or Regex).
std::unique_ptr<Normalizer> make_replace(const Json& settings);

// Precompiled: SentencePiece's character map (character_map.h), applied as in Hugging Face's
// library. A grapheme cluster of less than 6 bytes is looked up as a whole, and the replacement of
// its shortest matching prefix replaces all of it; otherwise each of its characters is looked up.
std::unique_ptr<Normalizer> make_precompiled(const Json& settings);

}  // namespace megatron::tokenizers
