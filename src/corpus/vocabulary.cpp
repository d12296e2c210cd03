#include "corpus/vocabulary.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "models/model.h"
#include "tokenizers/definition.h"
#include "tokenizers/plain_codecs.h"
#include "tokenizers/sentence_piece/sentence_piece.h"
#include "tokenizers/tik_token/tik_token.h"
#include "tokenizers/tokenizer_file.h"
#include "tokenizers/transformers/directory.h"

namespace megatron::corpus {
namespace {

using tokenizers::Codec;
using tokenizers::TokenizerFile;
using Kind = TokenizerFile::Kind;

enum class Family { hugging_face, gpt2, sentence_piece, tik_token, bert, null, bytes, refused };

struct TokenizerType {
  std::string_view name;
  Family family;
  std::string_view reason = {};  // why it is refused, and what to use instead
};

constexpr auto kTypes = std::to_array<TokenizerType>({
    {"HuggingFaceTokenizer", Family::hugging_face},
    {"SFTTokenizer", Family::hugging_face},  // --sft says how it writes conversations
    {"GPT2BPETokenizer", Family::gpt2},
    {"SentencePieceTokenizer", Family::sentence_piece},
    {"GPTSentencePieceTokenizer", Family::sentence_piece},
    {"Llama2Tokenizer", Family::sentence_piece},
    {"TikTokenizer", Family::tik_token},
    {"BertWordPieceLowerCase", Family::bert},
    {"BertWordPieceCase", Family::bert},
    {"NullTokenizer", Family::null},
    {"ByteTokenizer", Family::bytes},
    {"NullMultimodalTokenizer", Family::refused,
     "it is for text with images, which is not supported; use NullTokenizer"},
    {"MultimodalTokenizer", Family::refused,
     "it is for text with images, which is not supported; use HuggingFaceTokenizer with the text "
     "model's tokenizer"},
});

const TokenizerType& type_named(const std::string& name) {
  std::string names;
  for (const TokenizerType& type : kTypes) {
    if (type.name == name) {
      MG_CHECK(type.family != Family::refused, "--tokenizer-type {}: {}", name, type.reason);
      return type;
    }
    if (type.family != Family::refused)
      names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  fail("--tokenizer-type is '{}'; it can be {}", name, names);
}

const std::string& needed(const std::optional<std::string>& value, std::string_view type,
                          std::string_view flag) {
  MG_CHECK(value.has_value(), "--tokenizer-type {} needs --{}", type, flag);
  return *value;
}

// Adds the tokens after the vocabulary; those already in it only become special.
void add_special_tokens(tokenizers::Definition& definition, const std::vector<std::string>& names) {
  int64_t next = definition.vocabulary.size();
  for (const tokenizers::AddedToken& token : definition.added_tokens)
    next = std::max(next, token.id + 1);
  for (const std::string& name : names) {
    MG_CHECK(!name.empty(), "--tokenizer-special-tokens contains an empty token");
    const auto given =
        std::ranges::find(definition.added_tokens, name, &tokenizers::AddedToken::content);
    if (given != definition.added_tokens.end()) {
      given->special = true;
      continue;
    }
    const auto known = definition.vocabulary.find(name);
    definition.added_tokens.push_back(
        {.content = name, .id = known ? int64_t{*known} : next++, .special = true});
  }
}

// Builds a Vocabulary's tokenizer; one function per family.
class Opener {
 public:
  Opener(const settings::TokenizerSettings& settings, std::string_view type,
         std::optional<int64_t> vocab_size)
      : s_(settings), type_(type), vocab_size_(vocab_size) {}

  Vocabulary open(Family family) {
    switch (family) {
      case Family::hugging_face: open_hugging_face(); break;
      case Family::gpt2: open_gpt2(); break;
      case Family::sentence_piece: open_sentence_piece(); break;
      case Family::tik_token: open_tik_token(); break;
      case Family::bert: open_bert(); break;
      case Family::null: open_null(); break;
      default: open_bytes();
    }
    return std::move(v_);
  }

 private:
  void take(std::unique_ptr<Codec> codec, const std::string& directory) {
    v_.tokenizer = std::make_shared<const tokenizers::Tokenizer>(std::move(codec), directory);
  }
  TokenizerFile read_model() {
    v_.directory = needed(s_.tokenizer_model, type_, "tokenizer-model");
    // A directory that lacks the expected file may still open as a tokenizer by its other files.
    v_.opens_by_itself = std::filesystem::is_directory(v_.directory) ||
                         std::filesystem::path(v_.directory).filename() == "tokenizer.json";
    return tokenizers::read_tokenizer_file(v_.directory);
  }
  void check_kind(const TokenizerFile& file, Kind kind, std::string_view wanted) const {
    MG_CHECK(file.kind == kind,
             "--tokenizer-type {} needs {}, but {} is not one; drop --tokenizer-type, and the type "
             "is detected from the file",
             type_, wanted, file.path);
  }
  // Returns the result of f; errors name the file.
  template <class F>
  std::unique_ptr<Codec> make(const std::string& path, F&& f) const {
    try {
      return f();
    } catch (const Error& error) {
      fail("{}: {}", path, error.what());
    }
  }

  void open_hugging_face();
  void open_gpt2();
  void open_sentence_piece();
  void open_tik_token();
  void open_bert();
  void open_null();
  void open_bytes();

  const settings::TokenizerSettings& s_;
  std::string type_;
  std::optional<int64_t> vocab_size_;
  Vocabulary v_;
};

void Opener::open_hugging_face() {
  const TokenizerFile file = read_model();
  v_.add_special_tokens = s_.hf_include_special_tokens;
  if (!s_.tokenizer_special_tokens.empty()) v_.opens_by_itself = false;
  if (s_.tokenizer_special_tokens.empty())
    return take(tokenizers::make_codec(file), file.directory());
  check_kind(file, Kind::hugging_face,
             "a tokenizer.json, since --tokenizer-special-tokens is given");
  take(make(file.path,
            [&] {
              tokenizers::Definition definition = *tokenizers::open_definition(file);
              add_special_tokens(definition, s_.tokenizer_special_tokens);
              return tokenizers::make_pipeline(std::move(definition));
            }),
       file.directory());
}

void Opener::open_gpt2() {
  const std::string& vocabulary = needed(s_.vocab_file, type_, "vocab-file (vocab.json)");
  const std::string& merges = needed(s_.merge_file, type_, "merge-file (merges.txt)");
  v_.add_special_tokens = s_.hf_include_special_tokens;
  const TokenizerFile file{.path = vocabulary};
  v_.directory = vocabulary;
  v_.opens_by_itself = false;
  take(make(fmt::format("{}, {}", vocabulary, merges),
            [&] {
              tokenizers::Definition definition =
                  tokenizers::parse_gpt2(read_file(vocabulary), read_file(merges));
              add_special_tokens(definition, s_.tokenizer_special_tokens);
              return tokenizers::make_pipeline(std::move(definition));
            }),
       file.directory());
}

void Opener::open_sentence_piece() {
  const TokenizerFile file = read_model();
  check_kind(file, Kind::sentence_piece, "a SentencePiece .model");
  v_.add_special_tokens = false;
  // Megatron-LM's types read only the model.
  take(s_.tokenizer_type
           ? make(file.path, [&] { return tokenizers::make_sentence_piece(file.content, {}); })
           : tokenizers::make_codec(file),
       file.directory());
  MG_CHECK(
      s_.ignore_extra_whitespaces || !tokenizers::removes_extra_spaces(file.content),
      "--no-tokenizer-sentencepiece-ignore-extra-whitespaces (or "
      "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces): the normalizer of {} "
      "collapses repeated spaces, and escaping them as Megatron-LM does is not supported; use a "
      "model trained with remove_extra_whitespaces=false, or leave the flag out",
      file.path);
}

void Opener::open_tik_token() {
  const TokenizerFile file = read_model();
  v_.add_special_tokens = false;
  check_kind(file, Kind::tik_token_list, "Megatron-LM's JSON list of tokens");
  tokenizers::TikTokenOptions options;
  options.pattern = s_.tiktoken_pattern.value_or(options.pattern);
  options.special_count = s_.tiktoken_num_special_tokens;
  v_.opens_by_itself = false;
  options.vocabulary_size = vocab_size_.value_or(options.vocabulary_size);
  if (!s_.tokenizer_special_tokens.empty()) options.special_tokens = s_.tokenizer_special_tokens;
  take(make(file.path, [&] { return tokenizers::make_tik_token_list(file.content, options); }),
       file.directory());
}

void Opener::open_bert() {
  const std::string& vocabulary = needed(s_.vocab_file, type_, "vocab-file (vocab.txt)");
  constexpr int64_t kMaximumExtra = 1 << 20;
  MG_CHECK(s_.vocab_extra_ids >= 0 && s_.vocab_extra_ids <= kMaximumExtra,
           "--vocab-extra-ids is {}; it must lie in [0, {}]", s_.vocab_extra_ids, kMaximumExtra);
  v_.add_special_tokens = s_.hf_include_special_tokens;
  std::vector<std::string> names = {"[BOS]", "[EOS]"};
  names.insert(names.end(), s_.tokenizer_special_tokens.begin(), s_.tokenizer_special_tokens.end());
  for (int64_t i = 0; i < s_.vocab_extra_ids; ++i) names.push_back(fmt::format("<extra_id_{}>", i));
  v_.directory = vocabulary;
  v_.opens_by_itself = false;
  take(make(vocabulary,
            [&] {
              tokenizers::Definition definition =
                  tokenizers::parse_bert(read_file(vocabulary), type_ == "BertWordPieceLowerCase");
              add_special_tokens(definition, names);
              return tokenizers::make_pipeline(std::move(definition));
            }),
       "");
}

void Opener::open_null() {
  MG_CHECK(vocab_size_.has_value(),
           "without a tokenizer (--tokenizer-model) the vocabulary size is needed: --vocab-size");
  const int64_t size = *vocab_size_, eod = s_.null_tokenizer_eod_id.value_or(size - 1);
  MG_CHECK(size > 0 && size <= models::kMaxVocabulary, "--vocab-size is {}; it must lie in [1, {}]",
           size, models::kMaxVocabulary);
  MG_CHECK(eod >= 0 && eod < size,
           "--null-tokenizer-eod-id is {}; it must lie in [0, {}) (--vocab-size)", eod, size);
  MG_CHECK(s_.null_tokenizer_pad_id >= -1 && s_.null_tokenizer_pad_id < size,
           "--null-tokenizer-pad-id is {}; it must be -1 (none) or lie in [0, {}) (--vocab-size)",
           s_.null_tokenizer_pad_id, size);
  if (s_.null_tokenizer_pad_id >= 0) v_.pad = s_.null_tokenizer_pad_id;
  take(tokenizers::make_null_codec(size, eod), "");
}

void Opener::open_bytes() {
  const int64_t size = vocab_size_.value_or(256);
  MG_CHECK(size >= 256 && size <= models::kMaxVocabulary,
           "--vocab-size is {}; with ByteTokenizer it must lie in [256, {}]", size,
           models::kMaxVocabulary);
  take(tokenizers::make_byte_codec(size), "");
}

// Rejects flags of other families, which would have no effect.
void check_family_flags(const settings::TokenizerSettings& s, std::string_view type,
                        Family family) {
  // readers: types that the flag applies to.
  const auto only = [&](bool given, std::string_view flag, bool fits, std::string_view readers) {
    MG_CHECK(!given || fits,
             "--{} applies to --tokenizer-type {}, but the tokenizer is {}{}: give such a type, or "
             "drop the flag",
             flag, readers, type,
             s.tokenizer_type    ? ""
             : s.tokenizer_model ? " (detected from --tokenizer-model)"
                                 : " (the default without --tokenizer-model)");
  };
  const settings::TokenizerSettings defaults;
  const bool plain = family == Family::gpt2 || family == Family::bert;
  constexpr std::string_view kBert = "BertWordPieceLowerCase or BertWordPieceCase",
                             kTikToken = "TikTokenizer", kNull = "NullTokenizer";
  only(s.merge_file.has_value(), "merge-file", family == Family::gpt2,
       "GPT2BPETokenizer (with --vocab-file)");
  only(s.vocab_file.has_value(), "vocab-file", plain,
       "BertWordPieceLowerCase, BertWordPieceCase or GPT2BPETokenizer (with --merge-file)");
  only(s.tokenizer_model.has_value(), "tokenizer-model",
       !plain && family != Family::null && family != Family::bytes,
       "HuggingFaceTokenizer, SentencePieceTokenizer or TikTokenizer");
  only(s.vocab_extra_ids != 0, "vocab-extra-ids", family == Family::bert, kBert);
  only(s.tiktoken_pattern.has_value(), "tiktoken-pattern",
       // The null tokenizer reads ids, which no pattern splits.
       family == Family::tik_token || family == Family::null, kTikToken);
  only(s.tiktoken_num_special_tokens != defaults.tiktoken_num_special_tokens,
       "tiktoken-num-special-tokens", family == Family::tik_token, kTikToken);
  only(s.null_tokenizer_eod_id.has_value(), "null-tokenizer-eod-id", family == Family::null, kNull);
  only(s.null_tokenizer_pad_id != defaults.null_tokenizer_pad_id, "null-tokenizer-pad-id",
       family == Family::null, kNull);
  only(!s.tokenizer_special_tokens.empty(), "tokenizer-special-tokens",
       plain || family == Family::hugging_face || family == Family::tik_token,
       "HuggingFaceTokenizer, GPT2BPETokenizer, TikTokenizer, BertWordPieceLowerCase or "
       "BertWordPieceCase");
}

// The type that the settings name, or that the file has.
std::string type_of(const settings::TokenizerSettings& s) {
  if (const auto type = s.type_by_flags()) return *type;
  switch (tokenizers::read_tokenizer_file(*s.tokenizer_model).kind) {
    case Kind::sentence_piece: return "SentencePieceTokenizer";
    case Kind::tik_token_list: return "TikTokenizer";
    default: return "HuggingFaceTokenizer";
  }
}

}  // namespace

Vocabulary open_vocabulary(const settings::TokenizerSettings& s, std::optional<int64_t> vocab_size,
                           int64_t tensor_parallel) {
  const TokenizerType& type = type_named(type_of(s));
  check_family_flags(s, type.name, type.family);
  Vocabulary v = Opener(s, type.name, vocab_size).open(type.family);
  const int64_t known = v.tokenizer->vocabulary_size();
  MG_CHECK(!vocab_size || *vocab_size >= known,
           "the tokenizer {} has {} tokens, but the model's vocabulary has {} (an existing "
           "model's config.json, or else --vocab-size); use the tokenizer the model was trained "
           "with, or a model with the same vocabulary size",
           v.directory, known, *vocab_size);
  v.size = std::max<int64_t>(known, vocab_size.value_or(0));
  v.padded_size = settings::padded_vocabulary_size(s, v.size, tensor_parallel);
  v.eod = v.tokenizer->eod().value_or(-1);
  if (v.eod < 0 && type.family == Family::hugging_face) v.eod = v.tokenizer->sep().value_or(-1);
  if (v.tokenizer->pad()) v.pad = *v.tokenizer->pad();
  return v;
}

}  // namespace megatron::corpus
