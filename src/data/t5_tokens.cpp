#include "data/t5_tokens.h"

#include <utility>

#include "base/error.h"

namespace megatron::data {

T5Tokens t5_tokens(const tokenizers::Tokenizer& tokenizer) {
  return t5_tokens(sample_tokens(tokenizer), tokenizer);
}

DecoderTokens decoder_tokens(const BertTokens& roles) {
  MG_CHECK(roles.pad >= 0,
           "T5's samples are padded, but the tokenizer has no pad_token: name it in "
           "tokenizer_config.json");
  const int64_t first = roles.cls >= 0 ? roles.cls : roles.pad;
  const DecoderTokens tokens{
      .begin = roles.bos.value_or(first), .end = roles.eos.value_or(roles.sep), .pad = roles.pad};
  MG_CHECK(tokens.end >= 0,
           "T5's targets end with an end of sequence, but the tokenizer has no eos_token and no "
           "sep_token: name one in tokenizer_config.json");
  return tokens;
}

T5Tokens t5_tokens(BertTokens roles, const tokenizers::Tokenizer& tokenizer) {
  const DecoderTokens around = decoder_tokens(roles);
  T5Tokens tokens{.roles = {}, .begin = around.begin, .end = around.end, .sentinels = {}};
  while (const auto id = tokenizer.token_id(fmt::format("<extra_id_{}>", tokens.sentinels.size())))
    tokens.sentinels.push_back(*id);
  MG_CHECK(!tokens.sentinels.empty(),
           "T5's samples need a sentinel for each masked span, but the vocabulary has no "
           "<extra_id_0>: add sentinels with --vocab-extra-ids 100 (BERT's tokenizer types), or "
           "use T5's tokenizer");
  tokens.roles = std::move(roles);
  return tokens;
}

}  // namespace megatron::data
