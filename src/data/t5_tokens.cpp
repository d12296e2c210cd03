#include "data/t5_tokens.h"

#include <utility>

#include "base/error.h"

namespace megatron::data {

namespace {

// The sentinel of a number; mT5's begin with SentencePiece's mark of a space.
std::optional<int32_t> sentinel(const tokenizers::Tokenizer& tokenizer, size_t number) {
  const std::string name = fmt::format("<extra_id_{}>", number);
  const auto id = tokenizer.token_id(name);
  return id ? id : tokenizer.token_id("\u2581" + name);
}

}  // namespace

T5Tokens t5_tokens(const tokenizers::Tokenizer& tokenizer, int64_t start_token) {
  return t5_tokens(sample_tokens(tokenizer), tokenizer, start_token);
}

int64_t tokenizer_start(const BertTokens& roles) {
  return roles.bos.value_or(roles.cls >= 0 ? roles.cls : roles.pad);
}

DecoderTokens decoder_tokens(const BertTokens& roles, int64_t start_token) {
  MG_CHECK(roles.pad >= 0,
           "T5's samples are padded, but the tokenizer has no pad_token: name it in "
           "tokenizer_config.json");
  const DecoderTokens tokens{.begin = start_token >= 0 ? start_token : tokenizer_start(roles),
                             .end = roles.eos.value_or(roles.sep),
                             .pad = roles.pad};
  MG_CHECK(tokens.end >= 0,
           "T5's targets end with an end of sequence, but the tokenizer has no eos_token and no "
           "sep_token: name one in tokenizer_config.json");
  return tokens;
}

T5Tokens t5_tokens(BertTokens roles, const tokenizers::Tokenizer& tokenizer, int64_t start_token) {
  const DecoderTokens around = decoder_tokens(roles, start_token);
  T5Tokens tokens{.roles = {}, .begin = around.begin, .end = around.end, .sentinels = {}};
  while (const auto id = sentinel(tokenizer, tokens.sentinels.size()))
    tokens.sentinels.push_back(*id);
  MG_CHECK(!tokens.sentinels.empty(),
           "T5's samples need a sentinel for each masked span, but the vocabulary has no "
           "<extra_id_0>: add sentinels with --vocab-extra-ids 100 (BERT's tokenizer types), or "
           "use T5's tokenizer");
  tokens.roles = std::move(roles);
  return tokens;
}

}  // namespace megatron::data
