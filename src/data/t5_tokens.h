// The tokens of a vocabulary that samples for T5 are made with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/bert_tokens.h"

namespace megatron::data {

// Special tokens of the texts that the decoder of an encoder-decoder reads and writes.
struct DecoderTokens {
  int64_t begin = 0, end = 0, pad = 0;  // first token of a text; its last label; padding after it
};
// The tokenizer's beginning of sequence, or else [CLS], or else padding; -1: it has none of them.
int64_t tokenizer_start(const BertTokens& roles);
// begin: the model's start token, if it is not negative; else the tokenizer's. end: its end of
// sequence, or else [SEP]. Throws Error if there is no padding or end.
DecoderTokens decoder_tokens(const BertTokens& roles, int64_t start_token = -1);

struct T5Tokens {
  BertTokens roles;                // cls, sep and mask are -1 if the tokenizer has none
  int64_t begin = 0, end = 0;      // DecoderTokens'
  std::vector<int64_t> sentinels;  // <extra_id_0>, <extra_id_1> ...: one for each span of a sample
};

// Throws Error if there is no padding, end or sentinel.
T5Tokens t5_tokens(const tokenizers::Tokenizer& tokenizer, int64_t start_token = -1);
// The same with roles that are not the tokenizer's own.
T5Tokens t5_tokens(BertTokens roles, const tokenizers::Tokenizer& tokenizer,
                   int64_t start_token = -1);

}  // namespace megatron::data
