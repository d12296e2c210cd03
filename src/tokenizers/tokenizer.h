// Text to token ids and back: a Hugging Face tokenizer.json, or GPT-2's vocab.json and merges.txt.
// Byte-level BPE with the components listed in normalizer.h, pre_tokenizer.h, post_processor.h and
// decoder.h; anything else is refused by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

struct Definition;
struct SpecialTokens;

// All const members may be called by many threads at once.
class Tokenizer {
 public:
  // path: a tokenizer.json, or a directory that holds one, or one that holds vocab.json and
  // merges.txt. Names of special tokens come from the files beside it: tokenizer_config.json, then
  // special_tokens_map.json, then config.json, then the usual names ("<|endoftext|>", "</s>", ...).
  // Throws Error naming the file and what is wrong in it.
  static Tokenizer load(const std::string& path);
  static Tokenizer load_gpt2(const std::string& vocabulary_file, const std::string& merges_file);
  explicit Tokenizer(Definition definition);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of `text`. Special tokens that the text itself holds are always found; add_special_tokens
  // puts those of the post-processor round the text. Throws Error when the text is not valid UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;
  void encode(std::string_view text, bool add_special_tokens,
              std::vector<int32_t>& ids) const;  // appends

  // Ids without a token are left out; bytes that are no UTF-8 become U+FFFD, one for each maximal
  // broken part.
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = false) const;

  int32_t vocabulary_size() const;  // the largest id plus one
  std::optional<int32_t> token_id(std::string_view token) const;
  std::string_view token(
      int32_t id) const;  // as tokenizer.json spells it; throws Error on a bad id
  bool is_special(int32_t id) const;

  // End of document, beginning and end of sequence, padding. When only one of eod and eos is known,
  // it is both.
  std::optional<int32_t> eod() const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> pad() const;

  // tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer opens.
  void save(const std::string& directory) const;
  std::string to_json() const;  // the text of tokenizer.json

 private:
  friend class DecodeStream;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Decoding one token at a time, as generation prints it. A character that is cut by tokens appears
// when it is whole. The pieces one behind the other are decode() of all ids. The tokenizer must
// outlive the stream.
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(int32_t id);  // the text that is certain now, maybe ""
  std::string finish();          // the rest; the stream can then be used anew

 private:
  std::string emit_whole();

  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;       // byte-wise decoders: a character's first bytes
  std::vector<int32_t> ids_;  // others: all ids, and how much of their text was given out
  size_t given_ = 0;
};

}  // namespace megatron::tokenizers
