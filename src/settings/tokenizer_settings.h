// Settings of a command's tokenizer, under Megatron-LM's flag names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::settings {

struct TokenizerSettings {
  std::optional<std::string> tokenizer_type, tokenizer_model, vocab_file, merge_file;
  std::vector<std::string> tokenizer_special_tokens;
  int64_t vocab_extra_ids = 0;
  std::optional<std::string> tiktoken_pattern;
  int64_t tiktoken_num_special_tokens = 1000;
  bool ignore_extra_whitespaces = true;
  bool hf_include_special_tokens = true;
  std::optional<int64_t> null_tokenizer_eod_id;
  int64_t null_tokenizer_pad_id = -1;
  int64_t make_vocab_size_divisible_by = 128;
  std::optional<int64_t> padded_vocab_size;
  bool pad_vocab_size = true;

  // Tokenizer type given by the flags: --tokenizer-type; GPT2BPETokenizer with --vocab-file and
  // --merge-file, BertWordPieceLowerCase with the former alone; NullTokenizer without
  // --tokenizer-model; nullopt: the type is determined by the file's content.
  std::optional<std::string> type_by_flags() const;
  // All fields except --vocab-size, which in commands with a model is one of the model's flags.
  void fields(Fields& fields);
};

// Number of rows of the model's table, as in Megatron-LM: --padded-vocab-size, or `size` rounded up
// to a multiple of --make-vocab-size-divisible-by times tensor_parallel; `size` with
// --no-pad-vocab-size. Throws Error naming the flag, also if the padded size is less than `size`.
int64_t padded_vocabulary_size(const TokenizerSettings& settings, int64_t size,
                               int64_t tensor_parallel);

}  // namespace megatron::settings
