#include "data/bert_tokens.h"

#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace megatron::data {

BertTokens sample_tokens(const tokenizers::Tokenizer& tokenizer) {
  BertTokens tokens{.cls = tokenizer.cls().value_or(-1),
                    .sep = tokenizer.sep().value_or(-1),
                    .mask = tokenizer.mask().value_or(-1),
                    .pad = tokenizer.pad().value_or(-1),
                    .bos = {},
                    .eos = {},
                    .continues = {},
                    .special = {},
                    .present = {}};
  if (const auto bos = tokenizer.bos()) tokens.bos = *bos;
  if (const auto eos = tokenizer.eos()) tokens.eos = *eos;
  const auto size = static_cast<size_t>(tokenizer.vocabulary_size());
  tokens.continues.resize(size);
  tokens.special.resize(size);
  tokens.present.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (!tokenizer.codec().contains(id)) continue;
    tokens.present[i] = true;
    tokens.continues[i] = tokenizer.token(id).starts_with("##");
    tokens.special[i] = tokenizer.is_special(id);
  }
  for (const int64_t id : {tokens.cls, tokens.sep, tokens.mask, tokens.pad})
    if (id >= 0) tokens.special[static_cast<size_t>(id)] = true;
  return tokens;
}

BertTokens bert_tokens(const tokenizers::Tokenizer& tokenizer) {
  BertTokens tokens = sample_tokens(tokenizer);
  if (tokens.sep < 0) tokens.sep = tokens.eos.value_or(-1);
  const std::array<std::pair<const char*, int64_t>, 4> needed = {
      {{"cls", tokens.cls}, {"sep", tokens.sep}, {"mask", tokens.mask}, {"pad", tokens.pad}}};
  std::string missing;
  for (const auto& [name, id] : needed)
    if (id < 0) missing += fmt::format("{}{}_token", missing.empty() ? "" : ", ", name);
  MG_CHECK(missing.empty(),
           "BERT's samples need the special tokens [CLS], [SEP], [MASK] and [PAD], but the "
           "tokenizer has no {}: name it in tokenizer_config.json, or use a BERT tokenizer "
           "(--tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt)",
           missing);
  return tokens;
}

int64_t megatron_pad(const BertTokens& tokens, bool allow_ambiguous) {
  if (allow_ambiguous || !tokens.pad_is_ambiguous()) return tokens.pad;
  log::warning(
      "the padding token {} is also a special token, so padding has the id -1 as in Megatron-LM "
      "(--allow-ambiguous-pad-tokens changes that)",
      tokens.pad);
  return -1;
}

}  // namespace megatron::data
