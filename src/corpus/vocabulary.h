// The tokenizer properties that a run's data need.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "settings/tokenizer_settings.h"
#include "tokenizers/tokenizer.h"

namespace megatron::corpus {

struct Vocabulary {
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
  std::string directory;  // directory or file that it was read from; "" if it has no files
  // True if the files in `directory` open as this tokenizer without flags. Otherwise (added tokens,
  // files with other names) tokenizer->files() do.
  bool opens_by_itself = true;
  int64_t size = 0;
  int64_t padded_size = 0;  // rows of Megatron-LM's table; see padded_vocabulary_size
  int64_t eod = -1;
  std::optional<int64_t> pad;
  // Adds special tokens around each text, as Megatron-LM does with this type.
  bool add_special_tokens = true;
};

// Opens the tokenizer of --tokenizer-type by Megatron-LM's rules:
//   HuggingFaceTokenizer       --tokenizer-model; adds its special tokens around each text unless
//                              --tokenizer-hf-no-include-special-tokens; eod is eos, or else sep.
//                              The default with --tokenizer-model, unless its file is of the next
//                              two kinds
//   SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer
//                              a .model; adds no tokens around a text; eod is eos
//   TikTokenizer               a JSON list; special tokens first; vocab_size: default 131072;
//                              eod is </s>
//   GPT2BPETokenizer           --vocab-file, --merge-file
//   BertWordPieceLowerCase, BertWordPieceCase
//                              --vocab-file, followed by [BOS], [EOS] and --vocab-extra-ids; eod
//                              is [EOS]
//   NullTokenizer              vocab_size; eod is the last id or --null-tokenizer-eod-id. The
//                              default without --tokenizer-model
//   ByteTokenizer              vocab_size, default 256; eod is 0
// vocab_size: the value of --vocab-size or the model's. Throws Error naming the flag that is
// missing or wrong.
Vocabulary open_vocabulary(const settings::TokenizerSettings& settings,
                           std::optional<int64_t> vocab_size, int64_t tensor_parallel = 1);

}  // namespace megatron::corpus
