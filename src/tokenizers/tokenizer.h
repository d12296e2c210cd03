// Converts text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/codec.h"

namespace megatron::tokenizers {

struct SpecialTokens;

// All const members are thread-safe.
class Tokenizer {
 public:
  // path: a file or a directory with one. Known are tokenizer.json; GPT-2's vocab.json next to
  // merges.txt; a SentencePiece .model; TikToken files (.tiktoken, or Megatron-LM's .json list); a
  // BERT vocab.txt. Names of special tokens, and tokens that the file lacks, come from the files
  // next to it (transformers/directory.h), then config.json, then the usual names ("</s>",
  // ...). Throws Error naming the file and what is wrong in it.
  static Tokenizer load(const std::string& path);
  // directory: has the files with the names of special tokens; "" for none.
  explicit Tokenizer(std::unique_ptr<Codec> codec, const std::string& directory = "");
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of `text`. Special tokens in the text itself are recognized; add_special_tokens adds those
  // of the tokenizer around the text. Throws Error if the text is not valid UTF-8 (unless the codec
  // accepts it).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;
  void encode(std::string_view text, bool add_special_tokens,
              std::vector<int32_t>& ids) const;  // appends
  // Two texts with the tokenizer's special tokens, as it joins them to one input.
  JoinedTexts encode_pair(std::string_view first, std::string_view second) const {
    return codec_->join(encode(first), encode(second));
  }
  const Codec& codec() const { return *codec_; }  // encodes with options and offsets

  // Skips ids without a token; invalid UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const {
    return codec_->decode(ids, skip_special);
  }

  int32_t vocabulary_size() const { return codec_->size(); }  // the largest id plus one
  std::optional<int32_t> token_id(std::string_view token) const { return codec_->find(token); }
  std::string token(int32_t id) const;  // as spelt in the file; throws Error on an invalid id
  bool is_special(int32_t id) const { return codec_->is_special(id); }

  // End of document, beginning and end of sequence, padding. If only one of eod and eos is known,
  // it serves as both.
  std::optional<int32_t> eod() const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> pad() const;
  // Tokens of encoders: before a sequence, after each of its parts, in place of a masked token.
  std::optional<int32_t> cls() const;
  std::optional<int32_t> sep() const;
  std::optional<int32_t> mask() const;

  // Files that a directory needs so that the tokenizer can be opened again: its own files and
  // tokenizer_config.json. transformers' AutoTokenizer opens them.
  std::vector<Codec::File> files() const;
  void save(const std::string& directory) const;

 private:
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<SpecialTokens> special_tokens_;
};

// Decodes one token at a time, for streaming output. A character that is split across tokens
// appears once it is complete. The concatenated pieces equal decode() of all ids. The tokenizer
// must outlive the stream.
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(int32_t id);  // returns text that can no longer change, possibly ""
  std::string finish();          // returns the rest; the stream can then be reused

 private:
  std::string emit_whole();
  void forget(std::string_view all);

  const Codec* codec_;
  bool skip_special_;
  std::string pending_;       // byte-wise decoders: first bytes of a character
  std::vector<int32_t> ids_;  // others: ids, and how much of their text was returned
  size_t given_ = 0;
};

}  // namespace megatron::tokenizers
