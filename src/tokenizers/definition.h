// A tokenizer as described by tokenizer.json, parsed and validated but not yet built.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizers/vocabulary.h"

namespace megatron::tokenizers {

struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;  // must not be adjacent to word characters
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // matched in the normalised text instead of the raw one
  bool special = false;
};

struct Merge {
  int32_t left = 0, right = 0, joined = 0;
};

using NamedTokens = std::vector<std::pair<std::string, std::string>>;

struct Definition {
  // The file's members in order; "added_tokens" is null and "model" lacks vocab and merges.
  // Truncation and padding are preserved when written, but encode applies neither.
  Json settings;
  std::vector<AddedToken> added_tokens;
  std::string model;           // "BPE", "Unigram", "WordPiece" or "WordLevel"
  Vocabulary vocabulary;       // vocabulary of the model
  std::vector<Merge> merges;   // BPE: by rank
  std::vector<double> scores;  // Unigram: score of each id
  // "bos_token" and other names with the contents of their tokens, if the files next to the
  // tokenizer are part of it.
  std::optional<NamedTokens> named_tokens;

  const Json& member(std::string_view name) const;  // null if the file has none
};

// Throws Error (without the file's name) on anything malformed, on a model of another kind, and on
// merges of tokens that are not in the vocabulary. Merges may be ["a", "b"] or "a b".
Definition parse_definition(std::string_view text);

// Writes tokenizer.json, indented by two spaces per level.
std::string write_definition(const Definition& definition);

// Throws Error if either token, or their concatenation (the second without `prefix`,
// continuing_subword_prefix), is not in the vocabulary.
Merge find_merge(const Vocabulary& vocabulary, std::string_view left, std::string_view right,
                 std::string_view prefix = {});

// Settings of components. kind: "String" or "Regex"; the steps of a Sequence are under `key`.
struct BpeSettings {
  Json unknown = {}, affix = {};  // affix: both continuing_subword_prefix and end_of_word_suffix
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};
Json bpe_settings(BpeSettings settings);
Json byte_level_settings(bool add_prefix_space, bool use_regex);
Json metaspace_settings(const char* prepend_scheme);
Json replace_settings(const char* kind, const char* from, const char* to);
Json sequence_settings(const char* key, Json::Array steps);
Json split_settings(const char* kind, std::string_view pattern, const char* behavior);

// A definition with an empty vocabulary.
struct Components {
  Json normalizer = {}, pre_tokenizer = {}, post_processor = {}, decoder = {};
};
Definition definition_of(Json model, Components components = {});

// A byte-level BPE definition with an empty vocabulary: GPT-2's components, or, if `pattern` is not
// GPT-2's, a Split by it before ByteLevel.
Definition byte_level_definition(std::string_view pattern, bool add_prefix_space);

// Parses GPT-2's pair of files, given to Megatron-LM as --vocab-file and --merge-file.
// <|endoftext|> becomes a special token.
Definition parse_gpt2(std::string_view vocabulary_json, std::string_view merges_text);

// Parses a BERT vocabulary with one token per line, given to Megatron-LM as --vocab-file, and adds
// the components of BERT's tokenizers (Devlin et al., 2019). Throws Error if [UNK], [CLS] or [SEP]
// is missing.
Definition parse_bert(std::string_view vocabulary_text, bool lowercase);

}  // namespace megatron::tokenizers
